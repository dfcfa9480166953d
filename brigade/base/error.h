// What can go wrong, by whose fault it is; see ARCHITECTURE.md, "Errors".
//
// Every error that input, files, peers or the disk can cause is one of these
// types. A message names the thing, its value and what to do:
//   [parallel_dims] dp 2 * pp 2 * cp 1 * tp 3 = 12, but world size is 8
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace brigade {

// Exit codes of the program, one per kind of failure.
enum class ExitCode : int {
  kOk = 0,
  kUnexpected = 1,
  kConfig = 2,
  kComm = 3,
  kData = 4,
  kNumeric = 5,
  kStorage = 6,
  kStalled = 7,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The user's config, command line or environment, or a machine or build that
// lacks what these ask for. Found before any process group exists where it can
// be. Carries every problem found, not only the first.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& problem)
      : ConfigError(std::vector<std::string>{problem}) {}
  // Precondition: problems is not empty.
  explicit ConfigError(std::vector<std::string> problems);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

// A call of the library that does not fit its state or its arguments: the
// program is wrong, not what its user chose. What can be wrong with values of
// options that are keys of the config too, as AdamWOptions are, is mostly a
// plain ConfigError.
class UsageError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// A file that is wrong: its name, the offset, what was expected.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message)
      : Error(ExitCode::kData, message) {}
};

// A peer was lost or timed out: names the operation, the group and, where it
// can be known, the rank.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message)
      : Error(ExitCode::kComm, message) {}
};

// Disk full or an I/O error; nothing that was valid before is harmed.
class StorageError : public Error {
 public:
  explicit StorageError(const std::string& message)
      : Error(ExitCode::kStorage, message) {}
};

// Loss or gradient not finite: names rank, parameter, step.
class NumericError : public Error {
 public:
  explicit NumericError(const std::string& message)
      : Error(ExitCode::kNumeric, message) {}
};

// Throws an error of `error`'s type and exit code whose message is
// "`where`: `what()`"; an Error(kUnexpected) for what is no Error. A
// ConfigError's problems become one.
[[noreturn]] void rethrow_from(
    const std::string& where,
    const std::exception& error);

}  // namespace brigade
