#include "brigade/data_parallel/clip_grad.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// The gradients that an optimizer of this rank reads, and over which ranks each
// was reduced.
std::vector<std::pair<torch::Tensor, const Communicator*>> gradients_of(
    const GradSync& sync,
    const char* function) {
  sync.check_are_reduced(function);
  std::vector<std::pair<torch::Tensor, const Communicator*>> gradients;
  if (sync.options().handover == GradHandover::kMainGrad) {
    // These tensors have versions of their own:
    // HandedGradients::throw_if_kept() must not take clipping for clearing.
    for (const FlatSegment& segment : sync.segments())
      gradients.emplace_back(
          segment.owned_main_grad().variable_data(),
          segment.first_param->group.get());
    return gradients;
  }
  for (const Param& param : sync.params()) {
    const torch::Tensor& grad = param.tensor.grad();
    if (grad.defined())
      gradients.emplace_back(
          grad.is_sparse() ? grad._values() : grad.variable_data(),
          param.group.get());
  }
  if (gradients.empty()) {
    throw UsageError(fmt::format(
        "[data_parallel] {}() without a gradient: call it after the step's "
        "last backward(), and not with an optimizer that steps in backward",
        function));
  }
  return gradients;
}

}  // namespace

double clip_grad_norm(GradSync& sync, double max_norm) {
  const torch::NoGradGuard no_grad;
  // Must not count as a user's change: see GradSync::check_before_step().
  const at::DisableRecordFunctionGuard unobserved;
  const auto gradients = gradients_of(sync, "clip_grad_norm");
  const torch::Device device = sync.all_ranks()->options().device;
  auto sum =
      torch::zeros({1}, torch::TensorOptions(torch::kDouble).device(device));
  for (const auto& [gradient, group] : gradients) {
    if (gradient.numel() > 0 && sync.is_counted_here(*group))
      sum += at::linalg_vector_norm(
                 gradient, 2, at::OptionalIntArrayRef(), false, torch::kDouble)
                 .square();
  }
  if (sync.is_counted_elsewhere())
    sync.all_ranks()->all_reduce(sum)->wait();
  const double norm = std::sqrt(sum.item<double>()) * sync.grad_scale();
  const double factor = clip_factor(norm, max_norm);
  if (factor != 1) {
    for (const auto& [gradient, group] : gradients)
      gradient.mul_(factor);
  }
  return norm;
}

double clip_factor(double norm, double max_norm) {
  constexpr double kAgainstZero = 1e-6;  // as PyTorch's
  const double factor = max_norm / (norm + kAgainstZero);
  return factor >= 1 ? 1 : factor;
}

void clip_grad_value(GradSync& sync, double max_value) {
  const torch::NoGradGuard no_grad;
  const at::DisableRecordFunctionGuard unobserved;
  const double limit = max_value / sync.grad_scale();
  for (const auto& [gradient, group] : gradients_of(sync, "clip_grad_value"))
    gradient.clamp_(-limit, limit);
}

}  // namespace brigade
