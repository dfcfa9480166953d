// The states of libtorch's default generators, from which dropout draws: of the
// CPU and of the CUDA devices of some tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <utility>
#include <vector>

namespace brigade {

// As they are when it is made: 5 KB of the CPU, 16 bytes per GPU.
class RandomState {
 public:
  explicit RandomState(const std::vector<torch::Tensor>& tensors);

  // Whether no number was drawn since.
  bool is_current() const;

  // While it lives, the generators go on from `state`; afterwards from where
  // they were.
  class Scope {
   public:
    explicit Scope(const RandomState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::vector<std::pair<at::Generator, torch::Tensor>> before_;
  };

 private:
  std::vector<std::pair<at::Generator, torch::Tensor>> states_;
};

}  // namespace brigade
