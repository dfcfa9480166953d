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

template <typename Type>
void throw_if_is(const std::exception& error, const std::string& message) {
  if (dynamic_cast<const Type*>(&error) != nullptr)
    throw Type(message);
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> problems)
    : Error(ExitCode::kConfig, join_problems(problems)),
      problems_(std::move(problems)) {}

void rethrow_from(const std::string& where, const std::exception& error) {
  const std::string message = fmt::format("{}: {}", where, error.what());
  throw_if_is<UsageError>(error, message);  // before its base
  throw_if_is<ConfigError>(error, message);
  throw_if_is<DataError>(error, message);
  throw_if_is<CommError>(error, message);
  throw_if_is<StorageError>(error, message);
  throw_if_is<NumericError>(error, message);
  const auto* plain = dynamic_cast<const Error*>(&error);
  throw Error(plain ? plain->code() : ExitCode::kUnexpected, message);
}

}  // namespace brigade
