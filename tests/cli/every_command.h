// Tests that run every command.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "program.h"

namespace brigade {

// A run of two steps and files around it, made once. In a command line {D} is
// their folder and {T} that of the test.
class EveryCommand : public ProgramTest {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  // Makes the run, and a Hugging Face folder of it, for the first test.
  void SetUp() override;

  // The exit code of `brigade ARGUMENTS TAIL` in bash, where `tail` is a
  // redirection. out() and err() then hold this command's output only.
  int run(const std::string& arguments, const std::string& tail = "");
  // The commands that `brigade NAME --help` lists; "" is the program itself.
  std::vector<std::string> commands_of(const std::string& name);

  // {D}: text.txt, task.jsonl, t.jinja, run.json, tokens.bin, run and model.
  static std::filesystem::path data_;
};

}  // namespace brigade
