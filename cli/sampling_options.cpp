#include "cli/sampling_options.h"

#include <cstdint>
#include <limits>

#include "cli/options.h"

namespace brigade::cli {

void add_tokenizer_option(CLI::App& command, GenerateOptions& options) {
  command
      .add_option(
          "--tokenizer",
          options.tokenizer,
          "bytes, tokenizer.json, a .model or a folder (default: the "
          "checkpoint's)")
      ->type_name("SPEC");
}

void add_sampling_options(CLI::App& command, GenerateOptions& options) {
  command
      .add_option(
          "-n,--max-tokens", options.max_tokens, "Most tokens to generate")
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option(
          "-t,--temperature",
          options.temperature,
          "0: the likeliest token each time")
      ->check(number_between(0, 1e6))
      ->capture_default_str();
  command
      .add_option("--top-k", options.top_k, "Draw from the k likeliest; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option(
          "--top-p",
          options.top_p,
          "Draw from the likeliest that together reach p; 1: all")
      ->check(number_between(0, 1))
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of the draws")
      ->check(at_least(std::numeric_limits<int64_t>::min()))
      ->capture_default_str();
}

}  // namespace brigade::cli
