// What text generation is asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace brigade {

struct GenerateOptions {
  std::filesystem::path checkpoint;      // what StoredModel takes
  std::filesystem::path adapter;         // the same
  std::string tokenizer;                 // empty: the checkpoint's
  std::vector<std::string> prompts{""};  // at least one
  int64_t max_tokens = 128;              // of each prompt
  double temperature = 0.8;              // 0: the likeliest token each time
  int64_t top_k = 0;                     // 0: all
  double top_p = 0.95;                   // 1: all
  int64_t seed = 42;
  int64_t batch = 16;  // prompts at a time
};

}  // namespace brigade
