#include "brigade/launch/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "brigade/base/check.h"

namespace brigade {

namespace {

// A handler has no other way to its object.
std::atomic<int> handler_descriptor{-1};

void on_signal(int number) {
  const int error = errno;
  const char byte = static_cast<char>(number);
  // Full: so many are waiting that one more changes nothing.
  [[maybe_unused]] const ssize_t written =
      ::write(handler_descriptor.load(), &byte, 1);
  errno = error;
}

}  // namespace

SignalPipe::SignalPipe(const std::vector<int>& signals) : pipe_(make_pipe()) {
  BRIGADE_ASSERT(handler_descriptor.load() == -1, "two signal pipes");
  ::fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(pipe_.write_end.get(), F_SETFL, O_NONBLOCK);
  handler_descriptor = pipe_.write_end.get();
  for (int number : signals) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN && number != SIGCHLD)
      continue;
    before_[number] = action;
    action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
  }
}

SignalPipe::~SignalPipe() {
  for (const auto& [number, action] : before_)
    ::sigaction(number, &action, nullptr);
  handler_descriptor = -1;
}

std::vector<int> SignalPipe::take() {
  std::vector<int> signals;
  char bytes[64];
  ssize_t count = 0;
  while ((count = ::read(pipe_.read_end.get(), bytes, sizeof(bytes))) > 0) {
    for (ssize_t i = 0; i < count; ++i)
      signals.push_back(static_cast<unsigned char>(bytes[i]));
  }
  return signals;
}

}  // namespace brigade
