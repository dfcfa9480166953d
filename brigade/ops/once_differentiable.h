// Functions of autograd whose backward is not made of differentiable
// operations: kernels on raw memory, sums into main_grad, collectives. Their
// gradients can be computed, also with create_graph, but not differentiated
// again, as with PyTorch's once_differentiable: where a second backward comes
// through them it throws, instead of taking them for constants.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>

namespace brigade::ops {

// What `gradients_of` returns, computed without recording. Under create_graph
// a backward through the results throws UsageError that names `op`.
torch::autograd::variable_list differentiable_once(
    const char* op,
    const std::function<torch::autograd::variable_list()>& gradients_of);

// A base of such functions in place of torch::autograd::Function: with
// forward(), gradients_of() in place of backward(), and kName.
template <typename T>
struct OnceDifferentiable : torch::autograd::Function<T> {
  using AutogradContext = torch::autograd::AutogradContext;
  using variable_list = torch::autograd::variable_list;

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    return differentiable_once(T::kName, [&] {
      return T::gradients_of(context, std::move(gradients));
    });
  }
};

}  // namespace brigade::ops
