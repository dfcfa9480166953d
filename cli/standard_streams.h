// Standard input, output and error of the program. What a command prints on
// standard output is its result: a command that cannot write it fails with
// exit code 6. What it says on standard error may be lost.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace brigade::cli {

// Writes what was printed. Throws StorageError where some of it could not be
// written, now or before; Exit where its reader has gone, as SIGPIPE would end
// the process.
void finish_output();

// Throws as finish_output() does. `error_number`: the errno of the write that
// failed; 0: not known.
[[noreturn]] void throw_output_failure(int error_number);

// Prints a line of a log on standard output. Unlike fmt::print() it throws
// nothing: finish_output() does.
template <typename... Values>
void write_log(fmt::format_string<Values...> format, Values&&... values) {
  std::fputs(
      fmt::format(format, std::forward<Values>(values)...).c_str(), stdout);
  std::fflush(stdout);
}

// Prints on standard error; never throws.
template <typename... Values>
void note(fmt::format_string<Values...> format, Values&&... values) {
  std::fputs(
      fmt::format(format, std::forward<Values>(values)...).c_str(), stderr);
}

}  // namespace brigade::cli
