// Times of work that is repeated while all ranks do the same.
//
// Collective: every rank makes the same calls in the same order.
#pragma once

#include <functional>
#include <utility>

#include "brigade/comm/communicator.h"

namespace brigade {

double seconds_of(const std::function<void()>& work);

// Of a forward and its backward.
struct Phases {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
};

// The medians of work with collectives in it, which every rank must repeat
// equally often: of lock-step runs, ranks that come late are a part.
Phases lockstep_phases(
    Communicator& world,
    const std::function<void()>& forward,
    const std::function<void()>& backward,
    int runs);

class PhaseTimer {
 public:
  // seconds_each: how long work is repeated; eight times at least.
  PhaseTimer(CommunicatorPtr world, double seconds_each)
      : world_(std::move(world)), seconds_each_(seconds_each) {}

  // The lower quartiles, over runs that all ranks begin together, and that
  // meet nobody.
  Phases phases(
      const std::function<void()>& forward,
      const std::function<void()>& backward);
  double seconds(const std::function<void()>& work) {
    return phases(work, [] {}).forward;
  }

  // The part of the time of phases() in which this rank had no CPU.
  double taken_by_others() const;

 private:
  CommunicatorPtr world_;
  double seconds_each_;
  double wall_ = 0;  // of all repeated computation
  double cpu_ = 0;   // of all threads
};

}  // namespace brigade
