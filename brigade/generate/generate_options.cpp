#include "brigade/generate/generate_options.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

void check_values(const GenerateOptions& options) {
  std::vector<std::string> problems;
  if (options.max_tokens < 0)
    problems.push_back(
        fmt::format("--max-tokens {} is negative", options.max_tokens));
  // Also where it is not a number.
  if (!(options.temperature >= 0))
    problems.push_back(fmt::format(
        "--temperature {} is not a number >= 0", options.temperature));
  // Logits over less than this are infinite.
  constexpr double kLeastTemperature = 1e-6;
  if (options.temperature > 0 && options.temperature < kLeastTemperature)
    problems.push_back(fmt::format(
        "--temperature {} is too small to divide by; give 0 for the likeliest "
        "token each time, or at least {}",
        options.temperature,
        kLeastTemperature));
  if (options.top_k < 0)
    problems.push_back(fmt::format("--top-k {} is negative", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    problems.push_back(fmt::format(
        "--top-p {} is not in (0, 1]: give 1 for all tokens, or "
        "--temperature 0 for the likeliest",
        options.top_p));
  if (options.batch < 1)
    problems.push_back(
        fmt::format("--batch {} is not a number >= 1", options.batch));
  if (!problems.empty())
    throw ConfigError(problems);
}

}  // namespace brigade
