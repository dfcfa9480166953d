// brigade-torch: the program with libtorch, which `brigade` (cli/front/) starts
// for the commands that need it.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/comm/mpi/mpi_communicator.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/launch/program_start.h"
#include "cli/app.h"
#include "cli/library_logs.h"
#include "cli/training_step.h"

namespace brigade::cli {

namespace {

// Also of libtorch's own errors, without their backtraces.
int fail_with_any_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return fail_unexpectedly(error.what_without_backtrace());
  } catch (...) {
    return fail_with_current_exception();
  }
}

// A thread of c10d that serves or watches the store throws where nobody can
// catch when its connection is lost.
[[noreturn]] void fail_with_lost_store(const std::system_error& error) {
  const int64_t step = training_step;
  fail(
      ExitCode::kComm,
      fmt::format(
          "[store] a connection to the store where the ranks met was lost{}: "
          "{}; its host, or the network, failed",
          step < 0 ? "" : fmt::format(" at step {}", step),
          error.what()));
  std::fflush(stdout);
  ::_exit(static_cast<int>(ExitCode::kComm));
}

// Some threads of libtorch let exceptions escape.
int fail_with_escaped_exception() {
  try {
    throw;
  } catch (const std::system_error& error) {
    const bool is_connection = error.code() == std::errc::connection_reset ||
                               error.code() == std::errc::broken_pipe ||
                               error.code() == std::errc::not_connected;
    if (is_connection)
      fail_with_lost_store(error);
  } catch (...) {
  }
  return fail_with_any_exception();
}

[[noreturn]] void on_terminate() {
  end_with_current_exception(fail_with_escaped_exception);
}

}  // namespace

}  // namespace brigade::cli

// The sanitizer's search for leaks, where there is one.
extern "C" __attribute__((weak)) void __lsan_do_leak_check();

int main(int argc, char** argv) {
  // Who starts it may do so by another name (/proc/self/fd/3).
  ::prctl(PR_SET_NAME, "brigade-torch");
  brigade::prepare_program();
  std::set_terminate(brigade::cli::on_terminate);
  brigade::cli::silence_library_logs();
  brigade::ops::set_up_tensor_memory();
  const int code = brigade::cli::run_and_report(
      argc, argv, brigade::cli::fail_with_any_exception);
  brigade::end_mpi();
  // Not exit(), which runs the destructors of libraries: OpenBLAS' waits for
  // its threads, and one that cannot map its memory (ulimit -v) tries forever.
  std::fflush(nullptr);
  if (__lsan_do_leak_check != nullptr)
    __lsan_do_leak_check();
  ::_exit(code);
}
