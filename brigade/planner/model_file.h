// The shape of a model from its Hugging Face config: every architecture that
// `train` takes, and GPT-2, which it does not.
//
// PURE.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "brigade/planner/model_shape.h"

namespace brigade::planner {

struct ModelFile {
  ModelShape shape;
  int64_t positions = 0;       // the longest sequence it was made for
  bool train_takes_it = true;  // false: GPT-2
};

// `json` is a Hugging Face config, or a training config with one inline at
// /model/config. Every problem is added to `problems` as "<pointer>/key: ...";
// the result is usable only when none was added.
ModelFile parse_model_file(
    const nlohmann::json& json,
    const std::string& name,
    const std::string& pointer,
    std::vector<std::string>& problems);

}  // namespace brigade::planner
