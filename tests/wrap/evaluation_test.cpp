// Evaluation between steps, under c10::InferenceMode: the values of torch's own
// modules, and training goes on as if there had been none.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "brigade/wrap/data_parallel.h"
#include "brigade/wrap/sync_batch_norm.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

struct EvaluatedCase {
  const char* name;
  GradSyncOptions options;
  WrapOptions wrap;
};
void PrintTo(const EvaluatedCase& each, std::ostream* out) {
  *out << each.name;
}

EvaluatedCase sharded_case(const char* name, Sharding sharding) {
  EvaluatedCase result{name, {}, {}};
  result.options.handover = GradHandover::kMainGrad;
  result.options.sharding = sharding;
  return result;
}

EvaluatedCase hooked_case(const char* name, BucketHook hook) {
  EvaluatedCase result{name, {}, {}};
  result.options.hook = std::move(hook);
  return result;
}

std::vector<EvaluatedCase> evaluated_cases() {
  std::vector<EvaluatedCase> cases{
      {"Plain", {}, {}},
      {"PerParameter", {}, {.sync = GradSyncAlgorithm::kPerParam}},
      {"BroadcastBuffers", {}, {.broadcast_buffers = true}},
      sharded_case("MainGrad", Sharding::kNone),
      sharded_case("Optimizer", Sharding::kOptimizer),
      sharded_case("Gradients", Sharding::kGradients),
      sharded_case("Parameters", Sharding::kParameters),
      hooked_case("Bf16", bf16_hook()),
      hooked_case("Fp16", fp16_hook())};
  EvaluatedCase mixed{"MixedPrecision", {}, {}};
  mixed.wrap.mixed_precision = MixedPrecision{};
  cases.push_back(mixed);
  for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kGradients}) {
    cases.push_back(sharded_case(
        sharding == Sharding::kOptimizer ? "OptimizerOverlapped"
                                         : "GradientsOverlapped",
        sharding));
    cases.back().options.gather = GatherMode::kOverlapForward;
  }
  EvaluatedCase mixed_sharded =
      sharded_case("MixedPrecisionOptimizer", Sharding::kOptimizer);
  mixed_sharded.wrap.mixed_precision = MixedPrecision{};
  cases.push_back(mixed_sharded);
  return cases;
}

torch::nn::Sequential make_evaluated_net(const CommunicatorPtr& world) {
  torch::nn::Sequential net(
      torch::nn::Linear(6, 8),
      SyncBatchNorm(8, world),
      torch::nn::Tanh(),
      torch::nn::Linear(8, 4));
  fill_params(*net);
  return net;
}

enum class Evaluation { kNone, kBetweenSteps };

using EvaluatedModel = DataParallel<torch::nn::Sequential>;

void evaluate(
    EvaluatedModel& model,
    torch::nn::Sequential& net,
    const std::string& when) {
  net->eval();
  const Tensor x = pseudo_random({5, 6}, 50);
  Tensor expected;
  {
    const torch::NoGradGuard no_grad;
    expected = model.forward(x).clone();
  }
  {
    const c10::InferenceMode inference;
    const Tensor y = model.forward(x.clone());
    EXPECT_TRUE(y.is_inference());
    EXPECT_TRUE(torch::equal(y, expected)) << when;
    const FullWeights whole(model.sync());
    EXPECT_TRUE(net->parameters()[0].isfinite().all().item<bool>()) << when;
  }
  net->train();
}

// The weights after some steps.
std::vector<Tensor> train_with(
    const EvaluatedCase& each,
    Evaluation evaluation,
    const CommunicatorPtr& world) {
  auto net = make_evaluated_net(world);
  EvaluatedModel model(net, world, each.options, each.wrap);
  const bool is_flat = each.options.handover == GradHandover::kMainGrad;
  torch::optim::SGD optimizer(
      is_flat ? owned_parameters(model.sync()) : net->parameters(),
      torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < 4; ++step) {
    const std::string when = "before step " + std::to_string(step);
    if (evaluation == Evaluation::kBetweenSteps)
      evaluate(model, net, when);
    const Tensor x = pseudo_random({3, 6}, 10 * step + world->rank());
    model.forward(x).to(torch::kFloat).square().mean().backward();
    if (is_flat)
      model.step(optimizer);
    else
      optimizer.step();
  }
  if (evaluation == Evaluation::kBetweenSteps)
    evaluate(model, net, "after the last step");
  const FullWeights whole(model.sync());
  std::vector<Tensor> values;
  for (const Tensor& param : net->parameters())
    values.push_back(param.detach().clone());
  return values;
}

class EvaluationUnderInferenceMode
    : public ::testing::TestWithParam<EvaluatedCase> {};

TEST_P(EvaluationUnderInferenceMode, ChangesNoTraining) {
  for (const int ranks : {1, 3}) {
    for (const bool is_checked : {false, true}) {
      testing::run_ranks(
          ranks,
          [&](const CommunicatorPtr& world) {
            const auto expected =
                train_with(GetParam(), Evaluation::kNone, world);
            const auto trained =
                train_with(GetParam(), Evaluation::kBetweenSteps, world);
            for (size_t i = 0; i < expected.size(); ++i)
              EXPECT_TRUE(torch::equal(trained[i], expected[i])) << i;
          },
          {.check_collectives = is_checked});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    EvaluationUnderInferenceMode,
    ::testing::ValuesIn(evaluated_cases()),
    [](const auto& each) { return std::string(each.param.name); });

// Its forward is collective in training mode.
TEST(SyncBatchNorm, NormalizesOverRanksUnderInferenceMode) {
  testing::run_ranks(2, [](const CommunicatorPtr& world) {
    SyncBatchNorm norm(6, world);
    const Tensor x = pseudo_random({3, 6}, world->rank());
    const Tensor expected = norm(x).detach();
    const Tensor mean = norm->running_mean.clone();
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(torch::equal(norm(x), expected));
    }
    EXPECT_FALSE(torch::equal(norm->running_mean, mean));
    EXPECT_TRUE(torch::equal(norm(x), expected));
  });
}

}  // namespace
}  // namespace brigade
