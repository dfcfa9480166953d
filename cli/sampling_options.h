// The options of commands that write text: which tokenizer, how many tokens,
// and how they are drawn.
#pragma once

#include <CLI/CLI.hpp>

#include "brigade/generate/generate_options.h"

namespace brigade::cli {

// --tokenizer.
void add_tokenizer_option(CLI::App& command, GenerateOptions& options);
// --max-tokens, --temperature, --top-k, --top-p and --seed.
void add_sampling_options(CLI::App& command, GenerateOptions& options);

}  // namespace brigade::cli
