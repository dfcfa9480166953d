// Signals as bytes in a pipe, for a poll() loop. Handlers rather than
// signalfd: libraries of this process have threads of their own, which do not
// block what the main thread blocks.
#pragma once

#include <signal.h>

#include <map>
#include <vector>

#include "brigade/launch/rank_process.h"

namespace brigade {

// One at a time in a process. A signal that was ignored before (nohup) stays
// ignored; the destructor puts all back.
class SignalPipe {
 public:
  explicit SignalPipe(const std::vector<int>& signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int descriptor() const { return pipe_.read_end.get(); }
  // The signals since the last call, oldest first; does not block.
  std::vector<int> take();

 private:
  Pipe pipe_;
  std::map<int, struct sigaction> before_;
};

}  // namespace brigade
