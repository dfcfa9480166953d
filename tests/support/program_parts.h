// What the plain and the wrapped run of a random program share: batches, losses
// and torch's optimizers.
#pragma once

#include <torch/autograd.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "tests/support/program_net.h"
#include "tests/support/random_program.h"
#include "tests/support/run_program.h"

namespace brigade::testing {

inline constexpr double kProgramMaxNorm = 0.3;
inline constexpr double kProgramMaxValue = 0.05;

// How many steps this rank has data for.
int64_t steps_of(const RandomProgram& program, int rank);

struct ProgramBatch {
  torch::Tensor features;
  torch::Tensor ids;
  BranchUse branch = BranchUse::kSkip;
};

// The batch of one rank.
ProgramBatch batch_of(
    const RandomProgram& program,
    int64_t step,
    size_t micro_batch,
    int rank);

// What backward() is called on, one after the other.
template <typename Forward>
std::vector<torch::Tensor> losses_of(
    const RandomProgram& program,
    const ProgramBatch& batch,
    const Forward& forward) {
  std::vector<torch::Tensor> losses;
  const double parts =
      static_cast<double>(program.micro_batches) *
      (program.options.reduction == Reduction::kSum ? program.ranks : 1);
  for (const torch::Tensor& head : forward(batch))
    losses.push_back((head.to(torch::kFloat) - 0.2).pow(2).mean() / parts);
  if (program.penalty == RandomProgram::Penalty::kOfInputGradient) {
    const auto grad = torch::autograd::grad(
        {losses[0]}, {batch.features}, {}, true, /*create_graph=*/true)[0];
    losses[0] = losses[0] + 0.1 * grad.pow(2).mean();
  }
  if (program.losses == RandomProgram::Losses::kSum)
    losses = {losses[0] + losses[1]};
  else if (program.losses == RandomProgram::Losses::kOne)
    losses.resize(1);
  return losses;
}

// The learning rates of both groups.
std::vector<double> rates_of(int64_t step);

// The module's parameters in the program's groups.
std::vector<std::vector<torch::Tensor>> params_by_group(
    const RandomProgram& program,
    const ProgramNet& net);
// The same for torch::optim.
std::vector<torch::optim::OptimizerParamGroup> plain_groups(
    const RandomProgram& program,
    const ProgramNet& net);
double weight_decay_of(const RandomProgram& program, size_t group);

// torch's; of Brigade's AdamW the one that it is compared with.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const RandomProgram& program,
    const std::vector<torch::optim::OptimizerParamGroup>& groups);
void set_rates(torch::optim::Optimizer& optimizer, int64_t step);

// Copies of all parameters.
ProgramValues values_of(const ProgramNet& net);

}  // namespace brigade::testing
