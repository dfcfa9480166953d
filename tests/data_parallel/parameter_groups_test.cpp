// Learning rate and weight decay by parameter group, against torch::optim with
// the same groups on one process and the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;
using torch::optim::OptimizerParamGroup;

constexpr int64_t kGroupedSteps = 5;
constexpr double kSecondRate = 0.25;  // the second group's over the first's

struct GroupedNet : torch::nn::Module {
  GroupedNet() {
    fill_params(*this);
    frozen->weight.set_requires_grad(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(norm(torch::tanh(frozen(torch::tanh(first(x))))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 9));
  torch::nn::Linear frozen = register_module("frozen", torch::nn::Linear(9, 5));
  torch::nn::LayerNorm norm = register_module(
      "norm",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(5, 3));
};

using GroupedHandle = std::shared_ptr<GroupedNet>;

torch::Tensor grouped_batch(int64_t step, int rank) {
  return pseudo_random({4, 7}, 10 * step + rank);
}

// The matrices, including the frozen one, and the other parameters.
std::array<std::vector<torch::Tensor>, 2> matrices_and_vectors(
    const GroupedNet& net) {
  std::array<std::vector<torch::Tensor>, 2> parts;
  for (const auto& param : net.parameters())
    parts[param.dim() == 2 ? 0 : 1].push_back(param);
  return parts;
}

std::vector<OptimizerParamGroup> groups_for_torch(const GroupedNet& net) {
  auto [matrices, vectors] = matrices_and_vectors(net);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(
      matrices,
      std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(0.04).weight_decay(0.3).eps(1e-4)));
  groups.emplace_back(
      vectors,
      std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(0.04 * kSecondRate)
              .weight_decay(0)
              .eps(1e-4)));
  return groups;
}

using Values = std::vector<torch::Tensor>;

Values grouped_values(const GroupedNet& net) {
  Values values;
  for (const auto& param : net.parameters())
    values.push_back(param.detach().clone());
  return values;
}

// The results of plain torch with the groups and a scheduler.
struct PlainRun {
  Values values;
  std::vector<std::vector<double>> rates;  // by step and group
};

PlainRun train_plain(int ranks) {
  PlainRun run;
  GroupedNet net;
  torch::optim::AdamW optimizer(groups_for_torch(net));
  torch::optim::StepLR schedule(optimizer, 2, 0.5);
  for (int64_t step = 0; step < kGroupedSteps; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (net.forward(grouped_batch(step, rank)).pow(2).mean() / ranks).backward();
    std::vector<double> rates;
    for (const auto& group : optimizer.param_groups())
      rates.push_back(group.options().get_lr());
    run.rates.push_back(rates);
    optimizer.step();
    schedule.step();
  }
  run.values = grouped_values(net);
  return run;
}

void expect_values_near(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), 1e-5) << i;
}

GradSyncOptions grouped_options(Sharding sharding) {
  GradSyncOptions options;
  options.bucket_capacity_bytes = 256;  // several buckets
  options.handover = GradHandover::kMainGrad;
  options.sharding = sharding;
  return options;
}

class ParameterGroupsTest
    : public ::testing::TestWithParam<std::tuple<Sharding, int>> {};

TEST_P(ParameterGroupsTest, TorchOptimTrainsAsInPlainTorch) {
  const auto& [sharding, ranks] = GetParam();
  const PlainRun expected = train_plain(ranks);
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto net = std::make_shared<GroupedNet>();
    const auto groups = groups_for_torch(*net);
    DataParallel<GroupedHandle> model(net, world, grouped_options(sharding));
    torch::optim::AdamW optimizer(owned_parameters(model.sync(), groups));
    torch::optim::StepLR schedule(optimizer, 2, 0.5);
    for (int64_t step = 0; step < kGroupedSteps; ++step) {
      optimizer.zero_grad();
      model.forward(grouped_batch(step, world->rank()))
          .pow(2)
          .mean()
          .backward();
      model.step(optimizer);
      schedule.step();
    }
    const FullWeights whole(model.sync());
    expect_values_near(grouped_values(*net), expected.values);
  });
}

TEST_P(ParameterGroupsTest, BrigadesAdamWTrainsAsInPlainTorch) {
  const auto& [sharding, ranks] = GetParam();
  const PlainRun expected = train_plain(ranks);
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto net = std::make_shared<GroupedNet>();
    const auto [matrices, vectors] = matrices_and_vectors(*net);
    DataParallel<GroupedHandle> model(net, world, grouped_options(sharding));
    AdamW optimizer = make_adamw(
        model.sync(),
        {{.params = matrices, .weight_decay = 0.3}, {.params = vectors}},
        {.eps = 1e-4});
    for (int64_t step = 0; step < kGroupedSteps; ++step) {
      model.forward(grouped_batch(step, world->rank()))
          .pow(2)
          .mean()
          .backward();
      optimizer.step(
          expected.rates[static_cast<size_t>(step)], model.sync().grad_scale());
      model.gather_weights();
    }
    const FullWeights whole(model.sync());
    expect_values_near(grouped_values(*net), expected.values);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stages,
    ParameterGroupsTest,
    ::testing::Combine(
        ::testing::Values(
            Sharding::kNone,
            Sharding::kOptimizer,
            Sharding::kGradients,
            Sharding::kParameters),
        ::testing::Values(1, 2, 3)),
    [](const auto& each) {
      return std::string(to_string(std::get<0>(each.param))) + "_" +
             std::to_string(std::get<1>(each.param));
    });

TEST(ParameterGroups, StepInBackwardWithARateOfTheirOwn) {
  const PlainRun expected = train_plain(2);
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto net = std::make_shared<GroupedNet>();
    const auto [matrices, vectors] = matrices_and_vectors(*net);
    DataParallel<GroupedHandle> model(
        net, world, grouped_options(Sharding::kNone));
    AdamW optimizer = make_adamw(
        model.sync(),
        {{.params = matrices, .weight_decay = 0.3}, {.params = vectors}},
        {.eps = 1e-4});
    for (int64_t step = 0; step < kGroupedSteps; ++step) {
      model.step_in_backward(
          optimizer, expected.rates[static_cast<size_t>(step)]);
      model.forward(grouped_batch(step, world->rank()))
          .pow(2)
          .mean()
          .backward();
    }
    expect_values_near(grouped_values(*net), expected.values);
  });
}

// torch::optim does the same.
TEST(ParameterGroups, ParametersInNoGroupAreNotStepped) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto net = std::make_shared<GroupedNet>();
    const Values before = grouped_values(*net);
    DataParallel<GroupedHandle> model(
        net, world, grouped_options(Sharding::kOptimizer));
    torch::optim::SGD optimizer(
        owned_parameters(
            model.sync(), {OptimizerParamGroup(net->head->parameters())}),
        0.1);
    for (int64_t step = 0; step < 2; ++step) {
      model.forward(grouped_batch(step, world->rank()))
          .pow(2)
          .mean()
          .backward();
      model.step(optimizer);
    }
    model.sync().weights().need_all();
    for (size_t i = 0; i < before.size(); ++i) {
      const bool is_of_head = i + 2 >= before.size();
      EXPECT_EQ(torch::equal(net->parameters()[i], before[i]), !is_of_head)
          << i;
    }
  });
}

// An ignored parameter belongs to its rank: its group steps it as it is.
TEST(ParameterGroups, AnIgnoredParameterStaysInItsGroup) {
  const auto net = std::make_shared<GroupedNet>();
  DataParallel<GroupedHandle> model(
      net,
      make_world_of_one(),
      grouped_options(Sharding::kNone),
      {.ignore = {"head.bias"}});
  const auto groups = owned_parameters(
      model.sync(), {OptimizerParamGroup(net->head->parameters())});
  ASSERT_EQ(groups.size(), 1U);
  ASSERT_EQ(groups[0].params().size(), 2U);
  EXPECT_TRUE(groups[0].params()[0].is_same(net->head->bias));
  const torch::Tensor weight = net->head->weight.detach().flatten();
  EXPECT_TRUE(torch::equal(
      groups[0].params()[1].detach().narrow(0, 0, weight.numel()), weight));
}

TEST(ParameterGroups, NamesParametersThatCannotBeStepped) {
  const auto net = std::make_shared<GroupedNet>();
  DataParallel<GroupedHandle> model(
      net,
      make_world_of_one(),
      grouped_options(Sharding::kNone),
      {.ignore = {"head.bias"}});
  const std::vector<torch::Tensor> first = {net->first->weight};
  EXPECT_THAT(
      message_of<UsageError>([&] {
        owned_parameters(
            model.sync(),
            {OptimizerParamGroup(first), OptimizerParamGroup(first)});
      }),
      HasSubstr("'first.weight' is in parameter groups 0 and 1"));
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { make_adamw(model.sync(), {{.params = {net->head->bias}}}); }),
      HasSubstr("parameter group 0 has a parameter of shape [3] that is not "
                "synchronised"));
  AdamW of_two = make_adamw(
      model.sync(), {{.params = first}, {.params = {net->norm->weight}}});
  EXPECT_THAT(
      message_of<UsageError>([&] { of_two.step(std::vector<double>{0.1}); }),
      HasSubstr("1 learning rates, but 'bucket"));
  EXPECT_EQ(of_two.steps(), 0);
  EXPECT_THAT(
      message_of<UsageError>([&] { model.step_in_backward(of_two, 0.1); }),
      HasSubstr("lacks 'first.bias'"));
}

}  // namespace
}  // namespace brigade
