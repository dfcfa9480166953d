// The program, started as its users start it, with its output in files.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace brigade {

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest();
  ~ProgramTest() override;

  // build/.../brigade ARGUMENTS. $T is folder_, TMPDIR lies in it.
  pid_t start(const std::vector<std::string>& arguments) const;
  // Any program of PATH.
  pid_t start_program(
      const std::string& program,
      const std::vector<std::string>& arguments) const;
  // Waits; returns 128 + signal for a process that was killed.
  static int exit_code(pid_t pid);

  std::string out() const;
  std::string err() const;

  std::filesystem::path folder_;
};

extern const char* const kProgram;

std::string read_if_there(const std::filesystem::path& path);
// Polls until the condition holds; false after ten minutes.
bool eventually(const std::function<bool()>& condition);
// A zombie has ended.
bool is_running(pid_t pid);

}  // namespace brigade
