// A backward inside the backward of a node, as a recomputation runs it.
// Autograd reports the end of each backward to callbacks that were queued in
// it, but not which one is nested: code that starts one reports it here, and
// code that waits for the outermost end asks here (data_parallel/grad_hooks).
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace brigade::ops {

class NestedBackward {
 public:
  // Runs `backward` as nested in the one that this thread is in, and then, back
  // in that one, what was given to at_end(). Exceptions of either pass through.
  static void run(const std::function<void()>& backward) {
    std::vector<std::function<void()>> at_end;
    auto* const outer = std::exchange(innermost_, &at_end);
    try {
      backward();
    } catch (...) {
      innermost_ = outer;
      throw;
    }
    innermost_ = outer;
    for (const auto& callback : at_end)
      callback();
  }

  // Whether run() is under way on this thread.
  static bool is_active() { return innermost_ != nullptr; }

  // Precondition: is_active(). For the end of the innermost nested backward.
  static void at_end(std::function<void()> callback) {
    innermost_->push_back(std::move(callback));
  }

 private:
  static inline thread_local std::vector<std::function<void()>>* innermost_ =
      nullptr;
};

}  // namespace brigade::ops
