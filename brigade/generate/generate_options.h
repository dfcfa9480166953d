// What text generation is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/generate/model_place.h"

namespace brigade {

struct GenerateOptions {
  ModelPlace model;
  std::string tokenizer;                 // empty: the checkpoint's
  std::vector<std::string> prompts{""};  // at least one
  int64_t max_tokens = 128;              // of each prompt
  double temperature = 0.8;              // 0: the likeliest token each time
  int64_t top_k = 0;                     // 0: all
  double top_p = 0.95;                   // 1: all
  int64_t seed = 42;
  int64_t batch = 16;  // prompts at a time
};

// The seed of the draws for one prompt; for the first, the seed itself.
inline uint64_t prompt_seed(uint64_t seed, uint64_t prompt) {
  return seed + prompt * 0x9e3779b97f4a7c15;
}

// Throws ConfigError for values out of range, all at once.
void check_values(const GenerateOptions& options);

}  // namespace brigade
