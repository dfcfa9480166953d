// Weight gradients that can wait. Backward of a linear layer has two halves:
// the input gradient, for which the previous stage waits, and the weight
// gradient, for which no rank waits until the step ends. A pipeline schedule
// that separates the halves (zero_bubble) gives its ops a queue:
//
//   backward of an op:  queue->add([=] { main_grad += grad_output^T input; });
//                       return the input gradient, and none for the weight
//   backward_input:     start_deferring(); run autograd; deferred = take();
//   backward_weight:    run every entry of `deferred`, in order
//
// While nothing is deferred, add() runs the work at once, so that an op needs
// one path only.
//
// One thread at a time: the one that runs backward.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace brigade {

class WeightGradientQueue {
 public:
  using Work = std::function<void()>;

  // Adds one weight's gradient: now, or when the deferred work is run.
  void add(Work work) {
    if (deferring_)
      deferred_.push_back(std::move(work));
    else
      work();
  }

  void start_deferring() { deferring_ = true; }
  // Ends deferring and hands over what was added since it started.
  std::vector<Work> take() {
    deferring_ = false;
    return std::exchange(deferred_, {});
  }

 private:
  bool deferring_ = false;
  std::vector<Work> deferred_;
};

}  // namespace brigade
