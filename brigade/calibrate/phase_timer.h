// Times of work that is repeated while all ranks do the same.
//
// Collective: every rank makes the same calls in the same order.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// Seconds of a forward and its backward.
struct Phases {
  double forward = 0;
  double backward = 0;
};

// The medians of works that take turns, so that a machine that slows down slows
// all of them: works with collectives, which every rank must repeat equally
// often, and others to compare with. All ranks begin each together; those that
// come late are a part. Takes about five seconds at most, or five runs.
std::vector<double> lockstep_seconds(
    Communicator& world,
    const std::vector<std::function<void()>>& works,
    int most_runs);

class PhaseTimer {
 public:
  // seconds_each: how long work is repeated; eight times at least, or three
  // where one takes longer than that.
  PhaseTimer(CommunicatorPtr world, double seconds_each)
      : world_(std::move(world)), seconds_each_(seconds_each) {}

  // The medians, over runs that all ranks begin together, and that
  // meet nobody.
  Phases phases(
      const std::function<void()>& forward,
      const std::function<void()>& backward);
  double seconds(const std::function<void()>& work) {
    return phases(work, [] {}).forward;
  }

  // The part of the time of phases() in which this rank had no CPU.
  double taken_by_others() const;
  // All that was returned, added up.
  double total_seconds() const { return total_; }

 private:
  CommunicatorPtr world_;
  double seconds_each_;
  double total_ = 0;  // of all results
  double wall_ = 0;   // of all repeated computation
  double cpu_ = 0;    // of all threads
};

}  // namespace brigade
