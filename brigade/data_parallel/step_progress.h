// How far the parameters are in one step: which have gradients, how often the
// step's last backward reached each, the order in which they became ready, and
// what was handed over.
//
//   kNone --a backward--> kAccumulated, and kReady once it gets no more
//
// Used by the thread of backward and, between backwards, by the trainer's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/data_parallel/shown_gradient.h"
#include "brigade/param/param.h"

namespace brigade {

// How far one parameter is: see above.
enum class ReadyState : uint8_t { kNone, kAccumulated, kReady };

// One parameter in a step.
struct ParamStep {
  ReadyState state = ReadyState::kNone;
  int reaches = 0;           // by the step's last backward
  int expected_reaches = 0;  // by the first step's
  // .grad() as a step left it or an optimizer used it; the next step compares.
  ShownGradient shown;

  // ---- used by its Handover
  double given_scale = 1;  // the factor of its sum when handed over
  // The next gradient is added to one that a user has made.
  bool has_users = false;
  torch::Tensor reduced;  // SparseHandover: its sum, until it is handed over
};

class StepProgress {
 public:
  // `params` outlives this object.
  explicit StepProgress(std::span<const Param> params);

  // Prepares for the next step. The reaches counted in the first step stay.
  void reset();

  // See ReadyState.
  ReadyState state_of(int param) const {
    return steps_[static_cast<size_t>(param)].state;
  }
  // A backward has reached the parameter, or it is ready.
  void set(int param, ReadyState state) { of(param).state = state; }
  // The record of a parameter in this step.
  ParamStep& of(int param) { return steps_[static_cast<size_t>(param)]; }
  // The parameters that train; their groups may change.
  std::span<const Param> params() const { return params_; }
  // Makes it kReady, as the next in the order.
  void make_ready(int param) {
    set(param, ReadyState::kReady);
    ready_order_.push_back(param);
  }
  // Makes it kReady without a gradient: it has no place in the order.
  void make_ready_without_gradient(int param) {
    set(param, ReadyState::kReady);
  }
  // A micro-batch was reduced and the step goes on: kReady becomes
  // kAccumulated.
  void reopen();

  // The parameters that became ready with a gradient.
  const std::vector<int>& ready_order() const { return ready_order_; }
  // ready_order(), followed by all other parameters.
  std::vector<int64_t> complete_order() const;
  // By parameter: 1 if it became ready with a gradient.
  std::vector<int64_t> used() const;
  bool all_have_gradients() const;
  bool all_are_ready() const { return ready_order_.size() == steps_.size(); }

  // GraphReach::kAsInFirstStep: counts one more backward that reached a
  // parameter; returns whether it was the last one, by the count of the first
  // step. Always false in the first step.
  bool count_reach(int param);
  bool is_first_step() const { return is_first_step_; }
  // The first step is over: every step is expected to reach parameters as
  // often.
  void expect_these_reaches();

  // The names of the parameters in a state, for messages.
  std::string names_of(ReadyState state) const;
  // Throws UsageError naming the parameters that got no gradient, if there are
  // any.
  void throw_if_missing() const;

 private:
  std::span<const Param> params_;
  std::vector<ParamStep> steps_;  // by parameter
  std::vector<int> ready_order_;
  bool is_first_step_ = true;
};

}  // namespace brigade
