#include "brigade/base/error.h"

#include <fmt/format.h>

#include <utility>

namespace brigade {
namespace {

std::string join_problems(const std::vector<std::string>& problems) {
  if (problems.size() == 1)
    return problems.front();
  std::string text = fmt::format("{} problems:", problems.size());
  for (const std::string& problem : problems)
    text += "\n  " + problem;
  return text;
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> problems)
    : Error(ExitCode::kConfig, join_problems(problems)),
      problems_(std::move(problems)) {}

}  // namespace brigade
