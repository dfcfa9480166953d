// Every valid combination of synchronisation, hand-over, sharding, dtype and
// treatment of missing gradients, and a model of two parameters whose gradients
// have a closed form.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "brigade/wrap/data_parallel.h"

namespace brigade::testing {

struct SyncCase {
  GradSyncAlgorithm sync = GradSyncAlgorithm::kBucketed;
  GradHandover handover = GradHandover::kMainGrad;
  Sharding sharding = Sharding::kNone;
  MissingGradient missing = MissingGradient::kError;
  torch::ScalarType dtype = torch::kFloat;

  bool is_main_grad() const { return handover == GradHandover::kMainGrad; }
  GradSyncOptions options() const {
    GradSyncOptions options;
    options.bucket_capacity_bytes = 16;  // several buckets
    options.first_bucket_bytes = 8;
    options.handover = handover;
    options.sharding = sharding;
    options.missing_gradient = missing;
    return options;
  }
};

inline std::string name_of(const SyncCase& c) {
  std::string name =
      c.sync == GradSyncAlgorithm::kBucketed ? "Bucketed" : "PerParam";
  name += c.is_main_grad() ? "_MainGrad_" : "_ParamDtype_";
  name += to_string(c.sharding);
  name += c.missing == MissingGradient::kZero ? "_Zero" : "_Error";
  return name + (c.dtype == torch::kFloat ? "_Float" : "_BFloat16");
}
inline std::ostream& operator<<(std::ostream& out, const SyncCase& c) {
  return out << name_of(c);
}

inline std::vector<SyncCase> all_sync_cases() {
  std::vector<SyncCase> cases;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const auto missing :
         {MissingGradient::kError, MissingGradient::kZero}) {
      for (const auto handover :
           {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
        for (const auto sync :
             {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam})
          cases.push_back({sync, handover, Sharding::kNone, missing, dtype});
      }
      for (const auto sharding :
           {Sharding::kOptimizer,
            Sharding::kGradients,
            Sharding::kParameters}) {
        if (divides_gradients(sharding) && missing == MissingGradient::kZero)
          continue;
        cases.push_back(
            {GradSyncAlgorithm::kBucketed,
             GradHandover::kMainGrad,
             sharding,
             missing,
             dtype});
      }
    }
  }
  return cases;
}

// forward(x) sums x a and 2 x b, as used; their gradients are x and 2x.
struct TwoParams : torch::nn::Module {
  enum class Uses { kBoth, kA, kB };

  explicit TwoParams(torch::ScalarType dtype = torch::kFloat) {
    a = register_parameter("a", torch::ones({3}, dtype));
    b = register_parameter("b", torch::ones({5}, dtype));
  }
  torch::Tensor forward(double x, Uses uses = Uses::kBoth) {
    if (uses == Uses::kA)
      return (a * x).sum();
    if (uses == Uses::kB)
      return (b * (2 * x)).sum();
    return (a * x).sum() + (b * (2 * x)).sum();
  }
  torch::Tensor a, b;
};
using TwoParamsModel = DataParallel<std::shared_ptr<TwoParams>>;

inline TwoParamsModel wrap_two_params(
    const SyncCase& c,
    const CommunicatorPtr& world) {
  return {
      std::make_shared<TwoParams>(c.dtype),
      world,
      c.options(),
      {.sync = c.sync}};
}

// Collective. The whole gradient that an optimizer steps with, [numel] float64.
inline torch::Tensor gradient_of(GradSync& sync, int param) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor& tensor = sync.params()[param].tensor;
  if (sync.options().handover == GradHandover::kParamDtype)
    return tensor.grad().to(torch::kDouble).reshape({-1});
  const RunPart& part = sync.params()[param].owned;
  auto whole = torch::zeros({sync.main_grad(param).numel()}, torch::kDouble);
  whole.narrow(0, part.begin, part.numel).copy_(sync.owned_main_grad(param));
  if (sync.options().sharding != Sharding::kNone)
    sync.params()[param].group->all_reduce(whole)->wait();
  return whole * sync.grad_scale();
}

// One step of an optimizer that fits the case; `lr` = 0 moves nothing.
inline void step_with(TwoParamsModel& model, const SyncCase& c, double lr) {
  if (c.is_main_grad()) {
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    optimizer.step(lr, model.sync().grad_scale());
    model.gather_weights();
    return;
  }
  torch::optim::SGD optimizer(model->parameters(), lr);
  optimizer.step();
}

}  // namespace brigade::testing
