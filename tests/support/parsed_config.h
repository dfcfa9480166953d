#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// A model's config, which has no problems.
inline DecoderConfig parsed_config(const nlohmann::json& config) {
  std::vector<std::string> problems;
  DecoderConfig parsed = parse_decoder_config(config, "", problems);
  EXPECT_TRUE(problems.empty()) << problems.front();
  return parsed;
}

}  // namespace brigade
