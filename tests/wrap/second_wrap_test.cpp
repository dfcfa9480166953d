// What is left of a DataParallel that is gone, and what comes to a module that
// is wrapped: refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::SyncCase;
using testing::TwoParams;
using testing::TwoParamsModel;

class SecondWrap : public ::testing::TestWithParam<SyncCase> {
 protected:
  static std::unique_ptr<TwoParamsModel> wrap(
      const std::shared_ptr<TwoParams>& net,
      const CommunicatorPtr& world) {
    return std::make_unique<TwoParamsModel>(
        net, world, GetParam().options(), WrapOptions{.sync = GetParam().sync});
  }
  // The module to wrap again: under kParameters an unwrapped one has no
  // weights.
  static std::shared_ptr<TwoParams> again(std::shared_ptr<TwoParams> net) {
    return GetParam().sharding == Sharding::kParameters
               ? std::make_shared<TwoParams>()
               : std::move(net);
  }
};

TEST_P(SecondWrap, AnOptimizerOfTheFirstIsRefused) {
  if (!GetParam().is_main_grad())
    return;  // over the module's own parameters: below
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto net = std::make_shared<TwoParams>();
    auto model = wrap(net, world);
    torch::optim::SGD sgd(owned_parameters(model->sync()), 0.125);
    AdamW adamw = make_adamw(model->sync(), 0.0);
    model->forward(1).backward();
    model->step(sgd);
    model.reset();
    model = wrap(again(net), world);
    model->forward(1).backward();
    EXPECT_THAT(
        message_of<UsageError>([&] { model->step(sgd); }),
        HasSubstr("of another DataParallel, which is gone"));
    EXPECT_THAT(
        message_of<UsageError>([&] { adamw.step(0.125); }),
        HasSubstr("its DataParallel is gone"));
    // An optimizer that knows nothing of the wrapper.
    bool has_elements = false;
    for (const auto& param : sgd.param_groups().front().params())
      has_elements = has_elements || param.numel() > 0;
    if (has_elements) {
      EXPECT_ANY_THROW(sgd.step());
    }
  });
}

TEST_P(SecondWrap, AnOptimizerOverTheModulesParametersGoesOn) {
  if (GetParam().is_main_grad())
    return;
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<TwoParams>();
    torch::optim::SGD optimizer(net->parameters(), 0.125);
    for (int wrapped = 0; wrapped < 2; ++wrapped) {
      const auto model = wrap(net, world);
      model->forward(world->rank() + 1).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(net->a[0].item<double>(), 1 - 2 * 0.125 * 1.5);
  });
}

TEST_P(SecondWrap, TakesThePlaceOfTheFirst) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto stepped = [&](TwoParamsModel& model) {
      torch::optim::SGD sgd(
          GetParam().is_main_grad() ? owned_parameters(model.sync())
                                    : model.module().parameters(),
          0.125);
      model.forward(world->rank() + 1).backward();
      model.step(sgd);
      const torch::NoGradGuard no_grad;
      return model.forward(1).item<double>();
    };
    TwoParamsModel first =
        std::move(*wrap(std::make_shared<TwoParams>(), world));
    const double expected = stepped(first);
    auto other = wrap(std::make_shared<TwoParams>(), world);
    first = std::move(*other);
    other.reset();
    EXPECT_EQ(stepped(first), expected);
  });
}

TEST_P(SecondWrap, KeepsSharedMemorySharedOrIsRefused) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto one = std::make_shared<TwoParams>();
    const auto other = std::make_shared<TwoParams>();
    other->b.set_data(one->b.data());
    auto model = wrap(one, world);
    const auto wrap_other = [&] { wrap(other, world); };
    if (!GetParam().is_main_grad()) {
      wrap_other();
      EXPECT_TRUE(one->b.is_alias_of(other->b));
      return;
    }
    EXPECT_THAT(
        message_of<UsageError>(wrap_other),
        AllOf(
            HasSubstr("parameter 'b' shares memory with 'b'"),
            HasSubstr("of another module that is wrapped")));
    model.reset();
    EXPECT_EQ(message_of<UsageError>(wrap_other), "");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    SecondWrap,
    ::testing::ValuesIn([] {
      auto cases = testing::all_sync_cases();
      std::erase_if(cases, [](const SyncCase& c) {
        return c.dtype != torch::kFloat || c.missing != MissingGradient::kError;
      });
      return cases;
    }()),
    [](const auto& each) { return name_of(each.param); });

TEST(SecondWrap, ALayerThatCameAfterwardsIsRefusedByName) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2));
    DataParallel model(net, world);
    const auto backward = [&] {
      model.forward(torch::ones({1, 2})).sum().backward();
    };
    backward();
    model.reset();
    net->push_back(torch::nn::Linear(2, 2));
    EXPECT_THAT(
        message_of<UsageError>(backward),
        HasSubstr("parameter '1.weight' came to the module after"));
  });
}

TEST(IgnoredParameters, StepWithTheOthersAndBeginFromZero) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<TwoParams>();
    TwoParamsModel model(
        net,
        world,
        {.handover = GradHandover::kMainGrad, .sharding = Sharding::kOptimizer},
        {.ignore = {"b"}});
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net->parameters());
    torch::optim::SGD optimizer(
        owned_parameters(model.sync(), std::move(groups)),
        torch::optim::SGDOptions(0.125));
    for (int step = 1; step <= 3; ++step) {
      model.forward(world->rank() + 1).backward();
      model.step(optimizer);
      EXPECT_EQ(net->a[0].item<double>(), 1 - step * 0.125 * 1.5);
      EXPECT_EQ(
          net->b[0].item<double>(), 1 - step * 0.25 * (world->rank() + 1));
    }
  });
}

}  // namespace
}  // namespace brigade
