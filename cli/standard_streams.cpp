#include "cli/standard_streams.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

#include "brigade/base/error.h"
#include "cli/commands.h"

namespace brigade::cli {

void finish_output() {
  std::cout.flush();
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0;
  if (is_written && std::ferror(stdout) == 0)
    return;
  // The reason of an earlier failure is lost: another attempt says it.
  if (is_written)
    static_cast<void>(::write(STDOUT_FILENO, "\n", 1) == 1);
  throw_output_failure(errno);
}

void throw_output_failure(int error_number) {
  if (error_number == EPIPE)
    throw Exit{128 + SIGPIPE};
  throw StorageError(fmt::format(
      "cannot write the result to standard output{}{}",
      error_number == 0 ? "" : ": ",
      error_number == 0       ? ""
      : error_number == EBADF ? "it is closed"
                              : std::strerror(error_number)));
}

}  // namespace brigade::cli
