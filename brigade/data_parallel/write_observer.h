// Notices operations of libtorch that write to gradients that were handed over,
// or to their weights: a torch::optim optimizer, which does not report its
// steps otherwise, or a user who changes .grad(). Versions of tensors do not
// show that, since torch::optim and torch::nn::utils write through data(). Seen
// are operations in place (add_()) and those with an argument `out`.
//
// It observes the dispatcher (at::RecordFunction) in all threads, from begin()
// to the first write of a weight. Kernels that are called without it are not
// seen.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <functional>
#include <vector>

#include "brigade/data_parallel/shared_memory.h"

namespace brigade {

class WriteObserver {
 public:
  // What was written since begin(); a write of weights outranks gradients'.
  enum class Seen {
    kNothing,
    kGradients,
    kWeights,
    kStep,  // weights, or they are about to be: note_step()
  };

  WriteObserver() = default;
  ~WriteObserver() { end(); }
  WriteObserver(const WriteObserver&) = delete;
  WriteObserver& operator=(const WriteObserver&) = delete;

  // Begins to observe writes to the memory of these tensors. `on_step` is
  // called once, before the first write of a weight or by note_step(), in the
  // thread that writes; it must not run operations of libtorch.
  void begin(
      const std::vector<torch::Tensor>& gradients,
      const std::vector<torch::Tensor>& weights,
      std::function<void()> on_step);
  // Ends it.
  void end();
  // Called when an optimizer that reads these gradients where they lie steps
  // the weights. Nothing is noticed afterwards.
  void note_step();
  // kNothing after end().
  Seen seen() const { return seen_; }
  bool has_seen_weights() const { return seen_ >= Seen::kWeights; }
  bool is_observing() const { return is_observing_; }

  // Called by the callback when an operation writes to this memory.
  void note_write(const MemorySpan& written);

 private:
  std::vector<MemorySpan> gradients_;  // ascending, without overlaps
  std::vector<MemorySpan> weights_;    // the same
  std::function<void()> on_step_;
  std::atomic<Seen> seen_ = Seen::kNothing;
  std::atomic<bool> is_observing_ = false;
};

}  // namespace brigade
