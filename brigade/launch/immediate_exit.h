// exit() in the middle of training, as a library below may call it, with other
// threads at work: destructors of static objects would take from those threads
// what they use, and a crash would hide the exit code.
#pragma once

namespace brigade {

// While one lives and is armed, exit(code) on any thread flushes the streams
// of stdio and ends the process at once with that code. One at a time.
class ImmediateExit {
 public:
  ImmediateExit() = default;
  ~ImmediateExit();
  ImmediateExit(const ImmediateExit&) = delete;
  ImmediateExit& operator=(const ImmediateExit&) = delete;

  // Call it at the start of every step: exit() runs handlers in reverse order,
  // so the handler is registered again after the first step's static objects.
  void arm();

 private:
  int registrations_ = 0;
};

}  // namespace brigade
