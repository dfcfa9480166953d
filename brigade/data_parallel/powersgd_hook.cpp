#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/error_feedback.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/data_parallel/staged_work.h"

namespace brigade {
namespace {

// A gradient that is sent as two factors of `rank` columns, or as it is.
struct Factored {
  bool is_matrix() const { return q.defined(); }

  torch::Tensor gradient;  // [n, m] or as it is: a view of main_grad, while
                           // the step's reduction is under way
  torch::Tensor error;     // as matrix
  torch::Tensor q;         // [m, rank], which the next step begins with
  torch::Tensor fresh;     // [m, rank], in place of columns that vanished
  // Views of the buffers that are sent:
  torch::Tensor p_sent;  // [n, rank], or flat's values as they are
  torch::Tensor q_sent;  // [m, rank]
};

// Drawn from the parameter's name alone, so that it is the same on all ranks.
torch::Tensor
starting_factor(const std::string& name, int64_t m, int64_t rank) {
  return torch::randn(
      {m, rank},
      at::detail::createCPUGenerator(fnv1a_64(name)),
      torch::TensorOptions(torch::kFloat));
}

// Gram-Schmidt over the columns of p [n, rank]. A column that is the others'
// combination up to rounding becomes zero.
void make_orthonormal(torch::Tensor p) {
  constexpr double kSmallest = 1e-5;
  for (int64_t i = 0; i < p.size(1); ++i) {
    auto column = p.select(1, i);
    const double before = column.norm().item<double>();
    if (i > 0) {
      const auto others = p.narrow(1, 0, i);
      // Done twice because once leaves rounding errors.
      for (int round = 0; round < 2; ++round)
        column.sub_(others.mv(others.t().mv(column)));
    }
    const double norm = column.norm().item<double>();
    if (norm > kSmallest * before)
      column.div_(norm);
    else if (std::isfinite(before))
      column.zero_();
  }
}

// Error feedback of one bucket, kept from step to step.
class FactoredBucket : public KeptOfBucket {
 public:
  FactoredBucket(const BucketView& bucket, int64_t rank)
      : errors_(torch::zeros_like(bucket.main_grad)) {
    int64_t first = 0;
    int64_t second = 0;
    for (size_t i = 0; i < bucket.grads.size(); ++i) {
      const torch::Tensor& grad = bucket.grads[i];
      Factored& part = parts_.emplace_back();
      const int64_t n = grad.dim() < 2 ? 1 : grad.size(0);
      const int64_t m = n == 0 ? 0 : grad.numel() / n;
      const int64_t columns = std::min({rank, n, m});
      if (grad.dim() < 2 || 2 * columns * (n + m) > n * m) {
        first += grad.numel();
        continue;
      }
      part.error =
          errors_.narrow(0, offset_in_bucket(bucket, i), n * m).view({n, m});
      part.fresh = starting_factor(bucket.names[i], m, columns);
      part.q = part.fresh.clone();
      kept.push_back({"errors." + bucket.names[i], part.error});
      kept.push_back({"factor." + bucket.names[i], part.q});
      first += n * columns;
      second += m * columns;
    }
    first_ = torch::zeros({first});
    second_ = torch::zeros({second});
    share_out(bucket);
  }

  // Counts this step; returns whether it is one of the exact ones.
  bool is_exact(int64_t exact_steps) { return ++steps_ <= exact_steps; }
  int64_t sent_bytes() const { return 4 * (first_.numel() + second_.numel()); }

  // Computes P = M Q and launches its sum, with the gradients that are sent as
  // they are.
  WorkPtr send_first(BucketView& bucket, Communicator& communicator) {
    bucket.main_grad.add_(errors_);
    for (size_t i = 0; i < parts_.size(); ++i) {
      Factored& part = parts_[i];
      part.gradient = part.is_matrix()
                          ? bucket.grads[i].detach().view(part.error.sizes())
                          : bucket.grads[i].detach();
      if (part.is_matrix())
        torch::mm_out(part.p_sent, part.gradient, part.q);
      else
        part.p_sent.copy_(part.gradient);
    }
    return communicator.all_reduce(first_);
  }

  // Makes P orthonormal, computes Q = M^T P and this rank's error M - P Q^T,
  // and launches the sum of Q.
  WorkPtr send_second(Communicator& communicator) {
    for (Factored& part : parts_) {
      if (!part.is_matrix())
        continue;
      make_orthonormal(part.p_sent);
      torch::mm_out(part.q_sent, part.gradient.t(), part.p_sent);
      torch::addmm_out(
          part.error, part.gradient, part.p_sent, part.q_sent.t(), 1, -1);
    }
    // An infinity must not stay in the errors.
    if (!errors_.sum().isfinite().item<bool>())
      errors_.zero_();
    return second_.numel() == 0 ? make_completed_work()
                                : communicator.all_reduce(second_);
  }

  void finish() {
    for (Factored& part : parts_) {
      auto gradient = std::exchange(part.gradient, torch::Tensor());
      if (!part.is_matrix()) {
        gradient.copy_(part.p_sent);
        continue;
      }
      torch::mm_out(gradient, part.p_sent, part.q_sent.t());
      // A column that vanished, or is not finite, would stay so.
      const auto norms = part.q_sent.norm(2, 0, /*keepdim=*/true);
      const auto is_alive = norms.isfinite().logical_and(norms > 0);
      part.q.copy_(torch::where(is_alive, part.q_sent, part.fresh));
    }
  }

 private:
  // Hands each part its views of the buffers.
  void share_out(const BucketView& bucket) {
    int64_t first = 0;
    int64_t second = 0;
    const auto take =
        [](const torch::Tensor& of, int64_t& used, torch::IntArrayRef sizes) {
          const int64_t numel = c10::multiply_integers(sizes);
          used += numel;
          return of.narrow(0, used - numel, numel).view(sizes);
        };
    for (size_t i = 0; i < parts_.size(); ++i) {
      Factored& part = parts_[i];
      if (!part.is_matrix()) {
        part.p_sent = take(first_, first, bucket.grads[i].sizes());
        continue;
      }
      part.p_sent = take(first_, first, {part.error.size(0), part.q.size(1)});
      part.q_sent = take(second_, second, part.q.sizes());
    }
  }

  int64_t steps_ = 0;
  torch::Tensor errors_;  // as main_grad
  std::vector<Factored> parts_;
  torch::Tensor first_;   // sent: P of each matrix, the others' values
  torch::Tensor second_;  // sent: Q of each matrix
};

class PowerSgdReduction {
 public:
  PowerSgdReduction(const PowerSgdOptions& options, HookMemoryPtr memory)
      : options_(options), states_(std::move(memory)) {}

  WorkPtr launch(BucketView& bucket, Communicator& communicator) {
    check_can_compress(bucket, "powersgd_hook()");
    if (communicator.size() == 1 ||
        bucket.main_grad.scalar_type() != torch::kFloat)
      return communicator.all_reduce(bucket.main_grad);
    const torch::NoGradGuard no_grad;
    const auto state = states_.of(bucket, options_.rank);
    if (state->is_exact(options_.exact_steps))
      return communicator.all_reduce(bucket.main_grad);
    return reductions_.add(
        communicator,
        {.first = state->send_first(bucket, communicator),
         .second = [state,
                    &communicator] { return state->send_second(communicator); },
         .last = [state] { state->finish(); },
         .reduced_bytes = state->sent_bytes()});
  }

 private:
  PowerSgdOptions options_;
  StateOfBuckets<FactoredBucket> states_;
  StagedReductions reductions_;
};

}  // namespace

BucketHook powersgd_hook(const PowerSgdOptions& options) {
  return powersgd_hook(options, nullptr);
}

BucketHook powersgd_hook(const PowerSgdOptions& options, HookMemoryPtr memory) {
  if (options.rank < 1 || options.exact_steps < 0) {
    throw UsageError(fmt::format(
        "[grad_sync] powersgd_hook() with rank = {} and exact_steps = {}: "
        "factors have at least one column, and exact steps are counted from 0",
        options.rank,
        options.exact_steps));
  }
  return [reduction =
              std::make_shared<PowerSgdReduction>(options, std::move(memory))](
             BucketView& bucket, Communicator& communicator) {
    return reduction->launch(bucket, communicator);
  };
}

}  // namespace brigade
