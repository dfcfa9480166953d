// The command line: what all commands are, which one is meant, and how a
// failure becomes one message and one exit code (ARCHITECTURE.md, "Errors").
// No libtorch: a typing error costs no time.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "brigade/base/error.h"

namespace brigade::cli {

// Every command with its options: the table from which --help, the manual pages
// and the shells' completions come.
void add_commands(CLI::App& app);

// Parses the command line and runs the command. Returns the exit code of a
// command line that is wrong; what the command throws comes through.
int run_program(int argc, char** argv);

// To the supervisor, who prints the cause last, or to stderr.
void tell_failure(ExitCode code, const std::string& message) noexcept;
// tell_failure(); returns the code.
int fail(ExitCode code, const std::string& message);
// Of whatever is being handled: its message and its exit code.
int fail_with_current_exception();

}  // namespace brigade::cli
