// What all commands have in common, tried with each of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "program.h"

namespace brigade {

// A run of two steps, with what there is around one. Made once: {D} in a
// command line is its folder, {T} the test's own.
class EveryCommand : public ProgramTest {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  // Makes the run, and a Hugging Face folder of it, for the first test.
  void SetUp() override;

  // The exit code of `brigade ARGUMENTS TAIL` in bash; `tail` is a redirection.
  // out() and err() are then of this command alone.
  int run(const std::string& arguments, const std::string& tail = "");
  // The commands that `brigade NAME --help` lists, "" being the program itself.
  std::vector<std::string> commands_of(const std::string& name);

  // {D}: text.txt, task.jsonl, t.jinja, run.json, tokens.bin, run and model.
  static std::filesystem::path data_;
};

}  // namespace brigade
