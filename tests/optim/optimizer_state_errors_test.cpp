#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "brigade/base/error.h"
#include "brigade/optim/optimizer_state.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;
using ::testing::ThrowsMessage;

torch::nn::Sequential make_refused_net() {
  return torch::nn::Sequential(
      torch::nn::Linear(7, 13), torch::nn::Linear(13, 3));
}

TEST(OptimizerState, NamesStatesThatDoNotFit) {
  const auto net = make_refused_net();
  DataParallel<torch::nn::Sequential> model(net, make_world_of_one());
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model.forward(torch::ones({4, 7})).sum().backward();
  sgd.step();
  const OptimizerState state = gather_optimizer_state(model.sync(), sgd);
  const auto error_of = [&](torch::optim::Optimizer& optimizer,
                            const OptimizerState& from) -> std::string {
    return message_of<DataError>(
        [&] { load_optimizer_state(model.sync(), optimizer, from); });
  };
  torch::optim::Adam adam(net->parameters(), 0.1);
  EXPECT_THAT(
      error_of(adam, state),
      HasSubstr("has 'momentum_buffer', which this optimizer does not keep"));
  OptimizerState other = state;
  other.of_param["2.weight"] = other.of_param["0.weight"];
  EXPECT_THAT(
      error_of(sgd, other),
      HasSubstr("has '2.weight', which this module has not"));
  other = state;
  other.of_param["0.weight"]["momentum_buffer"] = torch::zeros({2});
  EXPECT_THAT(
      error_of(sgd, other),
      HasSubstr("has 'momentum_buffer' of '0.weight' with shape [2]: "
                "expected [13, 7]"));
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THROW(load_optimizer_state(model.sync(), lbfgs, state), UsageError);

  DataParallel<torch::nn::Sequential> flat(
      make_refused_net(),
      make_world_of_one(),
      {.handover = GradHandover::kMainGrad});
  AdamW adamw = make_adamw(flat.sync(), 0.0);
  EXPECT_THAT(
      [&] { load_optimizer_state(flat.sync(), adamw, state); },
      ThrowsMessage<DataError>(
          HasSubstr("has 'momentum_buffer' of '0.bias', which")));
  other = state;
  other.of_param["0.weight"]["step"] = torch::tensor(int64_t{7});
  EXPECT_THAT(
      [&] { load_optimizer_state(flat.sync(), adamw, other); },
      ThrowsMessage<DataError>(
          HasSubstr("after 0 steps and another parameter after 7")));
}

// Zeros would be taken for the moments of as many steps as the others have had.
TEST(OptimizerState, NamesTheParametersThatBrigadesOptimizersWouldLack) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding : {Sharding::kNone, Sharding::kOptimizer}) {
      DataParallel<torch::nn::Sequential> model(
          make_refused_net(),
          world,
          {.handover = GradHandover::kMainGrad, .sharding = sharding});
      AdamW adamw = make_adamw(model.sync(), 0.0);
      OptimizerState state;
      for (const char* name : {"0.weight", "1.bias"}) {
        const Param& param =
            model.sync().params()[model.sync().param_set().index_of(name)];
        const auto moments = torch::ones(param.tensor.sizes());
        state.of_param[name] = {
            {"step", torch::tensor(int64_t{5})},
            {"exp_avg", moments},
            {"exp_avg_sq", moments}};
      }
      EXPECT_THAT(
          [&] { load_optimizer_state(model.sync(), adamw, state); },
          ThrowsMessage<DataError>(HasSubstr(
              "has nothing of 0.bias, 1.weight, which this optimizer steps")));
      EXPECT_EQ(adamw.steps(), 0);
      load_optimizer_state(model.sync(), adamw, OptimizerState());
    }
  });
}

// The low half of a master is no moment.
TEST(OptimizerState, OfSgdWithoutMomentumMayLackParameters) {
  auto net = make_refused_net();
  net->to(torch::kBFloat16);
  DataParallel<torch::nn::Sequential> model(
      net, make_world_of_one(), {.handover = GradHandover::kMainGrad});
  Sgd sgd = make_sgd(model.sync(), {{.params = net->parameters()}});
  OptimizerState state;
  state.of_param["0.weight"] = {{"step", torch::tensor(int64_t{5})}};
  load_optimizer_state(model.sync(), sgd, state);
  EXPECT_EQ(sgd.steps(), 5);
}

TEST(OptimizerState, RefusesAnOptimizerWithoutStatesOnRanksOfPaddingToo) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    DataParallel<torch::nn::Linear> model(
        torch::nn::Linear(2, 2),
        world,
        {.handover = GradHandover::kMainGrad,
         .sharding = Sharding::kOptimizer});
    OptimizerState state;
    state.of_param["weight"] = {{"step", torch::tensor(int64_t{1})}};
    torch::optim::LBFGS lbfgs(owned_parameters(model.sync()));
    EXPECT_THROW(load_optimizer_state(model.sync(), lbfgs, state), UsageError);
  });
}

TEST(OptimizerState, RefusesTheStateOfAnIgnoredParameter) {
  const auto net = make_refused_net();
  DataParallel<torch::nn::Sequential> model(
      net, make_world_of_one(), {}, {.ignore = {"1.bias"}});
  torch::optim::Adam adam(net->parameters(), 0.1);
  model.forward(torch::ones({4, 7})).sum().backward();
  adam.step();
  EXPECT_THAT(
      [&] { gather_optimizer_state(model.sync(), adam); },
      ThrowsMessage<UsageError>(HasSubstr("a state of a tensor of shape [3]")));
}

}  // namespace
}  // namespace brigade
