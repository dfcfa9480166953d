// model.init "pretrained": a stage's parameters from Hugging Face's files.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "brigade/model_spec/llama_config.h"
#include "brigade/model_spec/shard.h"

namespace brigade {

struct LocalParam {
  std::string name;
  ParamShard shard;
  torch::Tensor weight;  // shard.shape, of any float dtype
};

// Fills `params` from the safetensors of `folder`, which must be those of the
// whole model `llama` (on every rank, whatever part it holds): see
// checkpoint/hugging_face.h. Padding is zeroed.
void load_pretrained(
    const std::filesystem::path& folder,
    const LlamaConfig& llama,
    const std::vector<LocalParam>& params);

}  // namespace brigade
