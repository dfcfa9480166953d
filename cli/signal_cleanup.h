// Work that leaves files behind when a signal ends the process.
#pragma once

#include <functional>
#include <thread>

namespace brigade::cli {

// While it lives, SIGTERM, SIGINT and SIGHUP have `clean` called before they
// end the process as they do otherwise. Threads that are started meanwhile
// leave the signals to it. Make it first, on the main thread.
class SignalCleanup {
 public:
  explicit SignalCleanup(std::function<void()> clean);
  ~SignalCleanup();
  SignalCleanup(const SignalCleanup&) = delete;
  SignalCleanup& operator=(const SignalCleanup&) = delete;

 private:
  std::thread thread_;
};

}  // namespace brigade::cli
