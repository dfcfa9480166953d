#include "brigade/launch/program_start.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <initializer_list>

namespace brigade {
namespace {

void open_missing_descriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is taken, which is this one.
    if (::fcntl(number, F_GETFD) < 0)
      ::open("/dev/null", number == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

void on_caught_signal(int /*number*/) {}

// A handler, not SIG_IGN, which exec() would hand on.
void catch_signal(int number) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  if (action.sa_handler != SIG_DFL)
    return;
  action = {};
  action.sa_handler = on_caught_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void prepare_program() {
  open_missing_descriptors();
  catch_signal(SIGXFSZ);
}

void outlive_readers() {
  catch_signal(SIGPIPE);
}

}  // namespace brigade
