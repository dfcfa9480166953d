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
// Reports an error that is none of ours, with what it says.
int fail_unexpectedly(const std::string& message);
// Reports the exception that is being handled: its message and its exit code.
int fail_with_current_exception();

// What main() does: run_program(), then what was printed is written. `report`:
// fail_with_current_exception(), or what handles more kinds of them.
int run_and_report(int argc, char** argv, int (*report)());

// Handles, for std::set_terminate(), an exception that left a thread: ends the
// process with the message and the exit code that `report` gives.
[[noreturn]] void end_with_current_exception(int (*report)()) noexcept;

}  // namespace brigade::cli
