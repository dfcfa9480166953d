// Continues prompts with a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/generate/generate_options.h"
#include "brigade/run/find_damage.h"

namespace brigade {

struct GeneratedText {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  bool is_ended = false;  // by a token that ends a text, not by max_tokens
};

struct GenerateResult {
  std::vector<GeneratedText> texts;  // by prompt
  double seconds = 0;                // of generation, without loading
  int64_t generated_tokens() const;
};

// What can be found wrong without ranks: throws what generate_text() would.
void check_generate_options(const GenerateOptions& options);

// What is possible but hardly meant: texts longer than the model's positions,
// and what model_warnings() finds in its config.
std::vector<std::string> generate_warnings(const GenerateOptions& options);

// Called with each piece of the text of a prompt, the prompt's own first, as
// soon as it is complete UTF-8.
using WriteText = std::function<void(size_t prompt, std::string_view piece)>;

// Collective over the world, with the same options on every rank; `config` is
// inference_config()'s for the mesh's dims. What is written is the same on
// every rank, and under every layout and batch up to rounding. A text ends
// after max_tokens, or at a token that ends texts: the tokenizer's, and those
// that the model's config.json and generation_config.json name. Prompts of a
// batch need not be of one length: the batch begins with as many tokens as its
// shortest prompt has, and longer ones go on with their own. Throws DataError
// for a checkpoint or tokenizer that does not fit, ConfigError for values out
// of range, NumericError for logits that are not finite. `on_verify` is called
// while this rank's share of a checkpoint is verified, before anything is
// written.
GenerateResult generate_text(
    const GenerateOptions& options,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const WriteText& write,
    const HashProgress& on_verify = {});

}  // namespace brigade
