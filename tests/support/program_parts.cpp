#include "tests/support/program_parts.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <utility>

namespace brigade::testing {
namespace {

using P = RandomProgram;
using torch::optim::OptimizerParamGroup;

constexpr int64_t kRows = 3;  // of a rank's micro-batch
constexpr double kRate = 0.05;
constexpr double kSecondRate = 0.3;  // of the second group, to the first's

// `options` is of the optimizer's own type.
template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_of(
    const P& program,
    std::vector<OptimizerParamGroup> groups,
    Options options) {
  for (size_t g = 0; g < groups.size(); ++g) {
    auto own = std::make_unique<Options>(options);
    own->weight_decay(weight_decay_of(program, g));
    groups[g].set_options(std::move(own));
  }
  return std::make_unique<Optimizer>(std::move(groups), options);
}

// With mixed precision: computed with 16-bit copies of the parameters, and
// accumulated in float32.
void add_gradients_of_copies(
    const P& program,
    const ProgramNet& net,
    const ProgramBatch& batch,
    double divisor) {
  const torch::ScalarType dtype = program.wrap.mixed_precision->param_dtype;
  ProgramNet low(program.net);
  low.to(dtype);
  auto params = net.parameters();
  auto copies = low.parameters();
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i)
      copies[i].copy_(params[i]);
  }
  const auto forward = [&](const ProgramBatch& each) {
    return low.forward(each.features.to(dtype), each.ids, each.branch);
  };
  for (const auto& loss : losses_of(program, batch, forward)) {
    low.zero_grad(/*set_to_none=*/true);
    loss.backward();
    for (size_t i = 0; i < params.size(); ++i) {
      if (!copies[i].grad().defined())
        continue;
      const torch::Tensor part = copies[i].grad().to(torch::kFloat) / divisor;
      torch::Tensor& sum = params[i].mutable_grad();
      sum = sum.defined() ? sum + part : part;
    }
  }
}

void add_gradients(
    const P& program,
    ProgramNet& net,
    const ProgramBatch& batch,
    double divisor) {
  if (program.wrap.mixed_precision) {
    add_gradients_of_copies(program, net, batch, divisor);
    return;
  }
  const auto forward = [&](const ProgramBatch& each) {
    return net.forward(each.features, each.ids, each.branch);
  };
  for (const auto& loss : losses_of(program, batch, forward))
    (loss / divisor).backward();
}

}  // namespace

double weight_decay_of(const P& program, size_t group) {
  using O = ProgramOptimizer;
  const bool decays =
      program.optimizer == O::kAdamW || program.optimizer == O::kBrigadeAdamW;
  return decays && group == 0 ? 0.2 : 0.0;
}

int64_t steps_of(const P& program, int rank) {
  return program.steps - (rank % 2 == 1 ? program.missing_steps : 0);
}

ProgramBatch batch_of(const P& program, int64_t step, size_t micro, int rank) {
  const int64_t seed = 101 * step + 17 * static_cast<int64_t>(micro) + 5 * rank;
  const int64_t features = program.net.features;
  ProgramBatch batch;
  batch.features = torch::sin(
                       torch::arange(kRows * features, torch::kFloat) * 1.3 +
                       static_cast<double>(seed))
                       .view({kRows, features});
  batch.ids =
      (torch::arange(kRows, torch::kLong) * 3 + seed) % program.net.vocabulary;
  using Branch = ProgramNetOptions::Branch;
  if ((program.net.branch == Branch::kInEvenSteps && step % 2 == 0) ||
      (program.net.branch == Branch::kOnEvenRanks && rank % 2 == 0))
    batch.branch = BranchUse::kUse;
  if (program.penalty == P::Penalty::kOfInputGradient)
    batch.features.set_requires_grad(true);
  return batch;
}

std::vector<double> rates_of(int64_t step) {
  const double rate = step % 2 == 0 ? kRate : kRate / 2;
  return {rate, rate * kSecondRate};
}

std::vector<std::vector<torch::Tensor>> params_by_group(
    const P& program,
    const ProgramNet& net) {
  std::vector<std::vector<torch::Tensor>> groups(
      program.groups == P::Groups::kOne ? 1 : 2);
  for (const torch::Tensor& param : net.parameters())
    groups[param.dim() == 2 ? 0 : groups.size() - 1].push_back(param);
  return groups;
}

// epsilons are large: what differs by rounding must not become a step's sign.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const P& program,
    const std::vector<OptimizerParamGroup>& groups) {
  namespace optim = torch::optim;
  using O = ProgramOptimizer;
  switch (program.optimizer) {
    case O::kSgd:
      return make_of<optim::SGD>(program, groups, optim::SGDOptions(kRate));
    case O::kMomentum:
      return make_of<optim::SGD>(
          program, groups, optim::SGDOptions(kRate).momentum(0.8));
    case O::kAdam:
      return make_of<optim::Adam>(
          program, groups, optim::AdamOptions(kRate).eps(1e-2));
    case O::kAdamW:
    case O::kBrigadeAdamW:
      return make_of<optim::AdamW>(
          program, groups, optim::AdamWOptions(kRate).eps(1e-2));
    case O::kRmsprop:
      return make_of<optim::RMSprop>(
          program, groups, optim::RMSpropOptions(kRate).eps(1e-1));
    case O::kAdagrad:
      return make_of<optim::Adagrad>(
          program, groups, optim::AdagradOptions(kRate).eps(1e-1));
  }
  return nullptr;
}

void set_rates(torch::optim::Optimizer& optimizer, int64_t step) {
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g)
    optimizer.param_groups()[g].options().set_lr(rates_of(step)[g]);
}

std::vector<OptimizerParamGroup> plain_groups(
    const P& program,
    const ProgramNet& net) {
  std::vector<OptimizerParamGroup> groups;
  for (auto& params : params_by_group(program, net))
    groups.emplace_back(params);
  return groups;
}

ProgramValues values_of(const ProgramNet& net) {
  ProgramValues values;
  for (const torch::Tensor& param : net.parameters())
    values.push_back(param.detach().clone());
  return values;
}

std::vector<ProgramValues> run_plain(const RandomProgram& program) {
  ProgramNet net(program.net);
  const auto optimizer = make_optimizer(program, plain_groups(program, net));
  std::vector<ProgramValues> values = {values_of(net)};
  for (int64_t step = 0; step < program.steps; ++step) {
    net.zero_grad(/*set_to_none=*/true);
    set_rates(*optimizer, step);
    int with_data = 0;
    for (int rank = 0; rank < program.ranks; ++rank)
      with_data += step < steps_of(program, rank) ? 1 : 0;
    const double divisor =
        program.options.reduction == Reduction::kMean ? with_data : 1;
    for (int rank = 0; rank < program.ranks; ++rank) {
      if (step >= steps_of(program, rank))
        continue;
      for (size_t m = 0; m < program.micro_batches; ++m)
        add_gradients(program, net, batch_of(program, step, m, rank), divisor);
    }
    if (program.clip == P::Clip::kNorm)
      torch::nn::utils::clip_grad_norm_(net.parameters(), kProgramMaxNorm);
    else if (program.clip == P::Clip::kValue)
      torch::nn::utils::clip_grad_value_(net.parameters(), kProgramMaxValue);
    if (step != program.skipped_step)
      optimizer->step();
    values.push_back(values_of(net));
  }
  return values;
}

}  // namespace brigade::testing
