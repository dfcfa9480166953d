// Notices which operations of libtorch write to gradients that were handed
// over, and to their weights: an optimizer of torch::optim, of which nobody
// else tells that it has stepped, and a user who changes .grad(). Versions of
// tensors do not: torch::optim and torch::nn::utils write through data().
// Operations are in place (add_()) or have an argument out.
//
// It observes the dispatcher (at::RecordFunction) in all threads, from begin()
// to the first write of a weight. Kernels that are called otherwise are not
// seen.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <functional>
#include <vector>

#include "brigade/data_parallel/shared_memory.h"

namespace brigade {

class WriteWatch {
 public:
  // What was written since begin(): weights, or else gradients.
  enum class Seen {
    kNothing,
    kGradients,
    kWeights,
    kStep,  // weights, or they are about to be: note_step()
  };

  WriteWatch() = default;
  ~WriteWatch() { end(); }
  WriteWatch(const WriteWatch&) = delete;
  WriteWatch& operator=(const WriteWatch&) = delete;

  // Writes to the memory of these are noticed from here on. `on_step` is called
  // once, before the first write of a weight or by note_step(), in the thread
  // that writes; it runs no operation of libtorch.
  void begin(
      const std::vector<torch::Tensor>& gradients,
      const std::vector<torch::Tensor>& weights,
      std::function<void()> on_step);
  // Nothing is noticed any longer.
  void end();
  // An optimizer that reads these gradients where they are steps the weights.
  // Nothing is noticed any longer.
  void note_step();
  // kNothing after end().
  Seen seen() const { return seen_; }
  bool has_seen_weights() const { return seen_ >= Seen::kWeights; }
  bool is_watching() const { return is_watching_; }

  // Called by the observer: an operation writes to this memory.
  void note_write(const MemorySpan& written);

 private:
  std::vector<MemorySpan> gradients_;  // ascending, without overlaps
  std::vector<MemorySpan> weights_;    // the same
  std::function<void()> on_step_;
  std::atomic<Seen> seen_ = Seen::kNothing;
  std::atomic<bool> is_watching_ = false;
};

}  // namespace brigade
