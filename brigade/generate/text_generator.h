// Continues a prompt with a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"

namespace brigade {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // what StoredModel takes
  std::string tokenizer;             // empty: the checkpoint's
  std::string prompt;
  int64_t max_tokens = 128;
  double temperature = 0.8;  // 0: the likeliest token each time
  int64_t top_k = 0;         // 0: all
  double top_p = 0.95;       // 1: all
  int64_t seed = 42;
};

struct GenerateResult {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};

// What can be found wrong without ranks: throws what generate_text() would.
void check_generate_options(const GenerateOptions& options);

// Collective over the world, with the same options on every rank; `config` is
// inference_config()'s for the mesh's dims. Calls `write` with the prompt and
// then with each piece of text as soon as it is complete UTF-8: the same on
// every rank, and under every layout up to rounding. Ends after max_tokens or
// at the end-of-text token.
// Throws DataError for a checkpoint or tokenizer that does not fit, ConfigError
// for values out of range.
GenerateResult generate_text(
    const GenerateOptions& options,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::function<void(std::string_view)>& write);

}  // namespace brigade
