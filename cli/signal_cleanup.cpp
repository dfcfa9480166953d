#include "cli/signal_cleanup.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace brigade::cli {

namespace {

constexpr int kStop = SIGUSR2;

sigset_t handled_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, kStop})
    ::sigaddset(&set, number);
  return set;
}

void wait_and_clean(const std::function<void()>& clean) {
  const sigset_t set = handled_signals();
  int number = 0;
  if (::sigwait(&set, &number) != 0 || number == kStop)
    return;
  clean();
  ::signal(number, SIG_DFL);
  ::raise(number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

SignalCleanup::SignalCleanup(std::function<void()> clean) {
  const sigset_t set = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([clean = std::move(clean)] { wait_and_clean(clean); });
}

SignalCleanup::~SignalCleanup() {
  ::pthread_kill(thread_.native_handle(), kStop);
  thread_.join();
  const sigset_t set = handled_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace brigade::cli
