// A module whose parameters are reduced over different groups of ranks, such as
// experts and shared parameters. The oracle reduces each gradient by itself,
// without syncs and buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <map>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/data_parallel/clip_grad.h"
#include "brigade/optim/owned_parameters.h"
#include "brigade/optim/param_stepper.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks_with_store;
using ::testing::ThrowsMessage;

constexpr int kWorld = 4;
constexpr double kRate = 0.25;

// Every second parameter is an expert's, reduced by each pair of ranks, 0 with
// 1 and 2 with 3. The last one is divided by the number of all ranks, as a mean
// over all tokens is.
struct GroupedModule {
  GroupedModule(const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const int which = all->rank() / 2;
    const std::vector<int64_t> numels = {3, 70, 5, 2, 130, 7};
    for (size_t i = 0; i < numels.size(); ++i) {
      const bool is_expert = i % 2 == 1;
      Param param;
      param.name =
          is_expert ? "expert" + std::to_string(which) + "." + std::to_string(i)
                    : "shared." + std::to_string(i);
      param.tensor = torch::full(
          {numels[i]}, is_expert ? 8.0 + which : 4.0, torch::requires_grad());
      if (is_expert)
        param.group = pair;
      if (i == 5)
        param.mean_divisor = kWorld;
      params.push_back(param);
      groups.push_back(is_expert ? pair : all);
    }
  }
  // Gradients are whole numbers that differ by parameter, element and rank.
  torch::Tensor loss(int64_t step, int rank) const {
    torch::Tensor sum = torch::zeros({});
    for (size_t i = 0; i < params.size(); ++i) {
      const auto index = static_cast<double>(i);
      const torch::Tensor factor =
          torch::arange(params[i].tensor.numel(), torch::kFloat) +
          (index + 1.0) * static_cast<double>((step + 1) * (rank + 1));
      sum = sum + (params[i].tensor * factor * 4).sum();
    }
    return sum;
  }
  std::vector<Param> params;
  std::vector<CommunicatorPtr> groups;
};

void run_pairs(
    const std::function<
        void(const CommunicatorPtr& all, const CommunicatorPtr& pair)>& body) {
  run_ranks_with_store(kWorld, [&](int rank, const StorePtr& store) {
    const auto make = [&](const std::string& name, int member, int size) {
      return make_gloo_communicator(
          store->with_prefix(name),
          member,
          size,
          {.name = name, .check_collectives = true});
    };
    const auto all = make("all", rank, kWorld);
    const auto pair =
        make("pair" + std::to_string(rank / 2), rank % 2, kWorld / 2);
    body(all, pair);
    all->barrier();
  });
}

// The mean gradients of a step of two micro-batches, reduced one by one.
std::vector<torch::Tensor> naive_gradients(
    const GroupedModule& module,
    int64_t step,
    int rank,
    Reduction reduction) {
  (module.loss(2 * step, rank) + module.loss(2 * step + 1, rank)).backward();
  std::vector<torch::Tensor> result;
  for (size_t i = 0; i < module.params.size(); ++i) {
    const double divisor = i == 5 ? kWorld : module.groups[i]->size();
    torch::Tensor sum = module.params[i].tensor.grad().clone();
    module.groups[i]->all_reduce(sum)->wait();
    if (reduction == Reduction::kMean)
      sum /= divisor;
    result.push_back(sum);
    torch::Tensor(module.params[i].tensor).mutable_grad().reset();
  }
  return result;
}

void backward(
    GradSync& sync,
    const GroupedModule& module,
    int64_t step,
    int rank) {
  for (const int64_t micro_batch : {0, 1}) {
    sync.set_accumulate_only(micro_batch == 0);
    sync.weights().use(0);
    module.loss(2 * step + micro_batch, rank).backward();
  }
}

// The whole weight of a parameter, whichever part this rank holds.
torch::Tensor weight_of(GradSync& sync, size_t param) {
  HeldUnit held(sync.weights());
  held.hold(0);
  return sync.params()[param].tensor.detach().clone();
}

class ReductionGroups : public ::testing::TestWithParam<testing::SyncCase> {};

TEST_P(ReductionGroups, StepsEqualThoseWithGradientsReducedOneByOne) {
  const testing::SyncCase& c = GetParam();
  run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      const GroupedModule naive(all, pair);
      const GroupedModule module(all, pair);
      GradSyncOptions options = c.options();
      options.reduction = reduction;
      options.bucket_capacity_bytes = 300;
      const auto sync = make_grad_sync(c.sync, module.params, all, options);
      std::vector<torch::Tensor> stepped;
      if (c.is_main_grad()) {
        stepped = owned_parameters(*sync);
      } else {
        for (const Param& param : module.params)
          stepped.push_back(param.tensor);
      }
      torch::optim::SGD sgd(stepped, kRate);
      for (int64_t step = 0; step < 2; ++step) {
        const auto expected =
            naive_gradients(naive, step, all->rank(), reduction);
        backward(*sync, module, step, all->rank());
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::equal(
              testing::gradient_of(*sync, static_cast<int>(i)),
              expected[i].to(torch::kDouble)))
              << module.params[i].name << " step " << step;
        }
        if (c.is_main_grad())
          step_owned(*sync, sgd);
        else
          sgd.step();
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < expected.size(); ++i) {
          torch::Tensor weight = naive.params[i].tensor;
          weight.sub_(expected[i] * kRate);
          EXPECT_TRUE(torch::equal(weight_of(*sync, i), weight))
              << module.params[i].name << " step " << step;
        }
      }
    }
  });
}

TEST_P(ReductionGroups, ABackwardBeforeTheStepAddsToWhatWasReduced) {
  const testing::SyncCase& c = GetParam();
  run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const GroupedModule naive(all, pair);
    const GroupedModule module(all, pair);
    const auto sync = make_grad_sync(c.sync, module.params, all, c.options());
    auto expected = naive_gradients(naive, 0, all->rank(), Reduction::kMean);
    const auto more = naive_gradients(naive, 1, all->rank(), Reduction::kMean);
    backward(*sync, module, 0, all->rank());
    backward(*sync, module, 1, all->rank());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(
          testing::gradient_of(*sync, static_cast<int>(i)),
          (expected[i] + more[i]).to(torch::kDouble)))
          << module.params[i].name;
    }
  });
}

TEST_P(ReductionGroups, TheNormCountsEachParameterOnce) {
  const testing::SyncCase& c = GetParam();
  run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const GroupedModule naive(all, pair);
    const GroupedModule module(all, pair);
    const auto sync = make_grad_sync(c.sync, module.params, all, c.options());
    const auto gradients =
        naive_gradients(naive, 0, all->rank(), Reduction::kMean);
    auto squares = torch::zeros({1}, torch::kDouble);
    for (size_t i = 0; i < gradients.size(); ++i)
      squares += gradients[i].to(torch::kDouble).square().sum() /
                 naive.groups[i]->size();
    all->all_reduce(squares)->wait();
    backward(*sync, module, 0, all->rank());
    const double norm = squares.sqrt().item<double>();
    EXPECT_NEAR(clip_grad_norm(*sync, norm / 2), norm, 1e-9 * norm);
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(torch::allclose(
          testing::gradient_of(*sync, static_cast<int>(i)),
          gradients[i].to(torch::kDouble) / 2,
          1e-5,
          0))
          << module.params[i].name;
    }
  });
}

std::vector<testing::SyncCase> float_cases() {
  std::vector<testing::SyncCase> cases;
  for (const testing::SyncCase& c : testing::all_sync_cases()) {
    if (c.dtype == torch::kFloat)
      cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    ReductionGroups,
    ::testing::ValuesIn(float_cases()),
    [](const auto& each) { return testing::name_of(each.param); });

TEST(GroupsOfRanks, NoBucketHasParametersOfTwoGroups) {
  run_pairs([](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const GroupedModule module(all, pair);
    const auto log = std::make_shared<std::vector<BucketView>>();
    GradSyncOptions options;
    options.hook = recording_hook(log);
    BucketedGradSync sync(module.params, all, options);
    module.loss(0, all->rank()).backward();
    const std::string expert = "expert" + std::to_string(all->rank() / 2) + ".";
    ASSERT_EQ(log->size(), 3);
    EXPECT_THAT((*log)[0].names, ElementsAre(expert + "5"));
    EXPECT_THAT((*log)[1].names, ElementsAre(expert + "3", expert + "1"));
    EXPECT_THAT(
        (*log)[2].names, ElementsAre("shared.4", "shared.2", "shared.0"));
  });
}

TEST(GroupsOfRanks, AMissingGradientIsThatOfTheGroupAlone) {
  run_pairs([](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const GroupedModule module(all, pair);
    GradSyncOptions options;
    options.missing_gradient = MissingGradient::kZero;
    BucketedGradSync sync(module.params, all, options);
    const torch::Tensor& shared = module.params[0].tensor;
    const torch::Tensor& expert = module.params[1].tensor;
    if (all->rank() == 0)
      expert.sum().backward();
    else
      shared.sum().backward();
    EXPECT_EQ(expert.grad().defined(), all->rank() < 2);
    EXPECT_TRUE(shared.grad().defined());
  });
}

TEST(GroupsOfRanks, AParamSetVisitsStatesOfAllGroups) {
  for (const Sharding sharding :
       {Sharding::kNone,
        Sharding::kOptimizer,
        Sharding::kGradients,
        Sharding::kParameters}) {
    run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
      const GroupedModule module(all, pair);
      const GroupedModule naive(all, pair);
      GradSyncOptions options;
      options.handover = GradHandover::kMainGrad;
      options.sharding = sharding;
      ParamStepper stepper(
          std::make_unique<BucketedGradSync>(module.params, all, options),
          [](const Param&) { return StepRule{}; },
          [](std::vector<OptimizerGroup> groups) {
            return std::make_unique<AdamW>(std::move(groups), AdamWOptions{});
          });
      const auto gradients =
          naive_gradients(naive, 0, all->rank(), Reduction::kMean);
      backward(stepper.sync(), module, 0, all->rank());
      stepper.optimizer().step(0.5, stepper.sync().grad_scale());
      stepper.sync().gather_weights();
      std::map<std::string, torch::Tensor> moments;
      std::map<std::string, torch::Tensor> weights;
      const ParamSet& set = stepper.sync().param_set();
      set.visit([&](const Param& param) {
        moments[param.name] = param.state("exp_avg").clone();
        weights[param.name] = param.tensor.clone();
      });
      for (size_t i = 0; i < gradients.size(); ++i) {
        const std::string& name = module.params[i].name;
        ASSERT_TRUE(moments[name].defined()) << name;
        EXPECT_TRUE(torch::allclose(moments[name], gradients[i] * 0.1)) << name;
        // The first step of Adam moves each element by the rate.
        EXPECT_TRUE(torch::allclose(
            weights[name], naive.params[i].tensor.detach() - 0.5))
            << name;
      }
      const auto replicas = set.replicas();
      if (sharding == Sharding::kParameters) {
        EXPECT_TRUE(replicas.empty());
        return;
      }
      ASSERT_EQ(replicas.size(), 3);
      EXPECT_EQ(replicas[0].first, all);
      EXPECT_EQ(replicas[1].first, pair);
      EXPECT_EQ(replicas[1].second[1].name, module.params[3].name);
    });
  }
}

TEST(GroupsOfRanks, UnevenInputsCountTheRanksOfOneGroup) {
  run_pairs([](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const GroupedModule module(all, pair);
    BucketedGradSync sync(module.params, all);
    EXPECT_THAT(
        [&] { sync.allow_uneven_inputs({}); },
        ThrowsMessage<UsageError>(HasSubstr("is reduced over group 'pair")));
  });
}

TEST(GroupsOfRanks, RanksOfAGroupThatDifferAreNamed) {
  run_pairs([](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    GroupedModule module(all, pair);
    if (all->rank() == 3)
      module.params[1].name = "other";
    EXPECT_THAT(
        [&] { const BucketedGradSync sync(module.params, all); },
        ThrowsMessage<CommError>(
            HasSubstr("replicas differ in group 'pair1' at parameter 1")));
  });
}

TEST(GroupsOfRanks, RegroupingReducesOverTheOtherRanksFromTheNextStepOn) {
  for (const auto algorithm :
       {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
    run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
      const auto weight = torch::ones({3}, torch::requires_grad());
      GradSyncOptions options;
      options.reduction = Reduction::kSum;
      options.handover = GradHandover::kMainGrad;
      const auto sync = make_grad_sync(
          algorithm, {{.name = "weight", .tensor = weight}}, pair, options);
      const auto sum_of_step = [&] {
        (weight * (all->rank() + 1.0)).sum().backward();
        const double sum = sync->main_grad(0)[0].item<double>();
        sync->zero_main_grads();
        return sum;
      };
      EXPECT_EQ(sum_of_step(), all->rank() < 2 ? 3 : 7);
      sync->regroup(pair, all);
      EXPECT_EQ(sync->params()[0].group, all);
      EXPECT_EQ(sum_of_step(), 10);
      sync->regroup(all, pair);
      EXPECT_EQ(sum_of_step(), all->rank() < 2 ? 3 : 7);
      sync->set_accumulate_only(true);
      weight.sum().backward();
      EXPECT_THROW(sync->regroup(pair, all), UsageError);
    });
  }
}

// The hook keeps sums per group, and a group may be gone.
TEST(GroupsOfRanks, Int8HookReducesOverTheOtherRanksAfterRegrouping) {
  run_pairs([&](const CommunicatorPtr& all, const CommunicatorPtr& pair) {
    const auto weight = torch::ones({3}, torch::requires_grad());
    GradSyncOptions options;
    options.reduction = Reduction::kSum;
    options.handover = GradHandover::kMainGrad;
    options.hook = int8_hook();
    const auto sync = make_grad_sync(
        GradSyncAlgorithm::kBucketed,
        {{.name = "weight", .tensor = weight}},
        pair,
        options);
    const auto sum_of_step = [&] {
      (weight * (all->rank() + 1.0)).sum().backward();
      const double sum = sync->main_grad(0)[0].item<double>();
      sync->zero_main_grads();
      return sum;
    };
    EXPECT_NEAR(sum_of_step(), all->rank() < 2 ? 3 : 7, 0.1);
    sync->regroup(pair, all);
    EXPECT_NEAR(sum_of_step(), 10, 0.1);
  });
}

}  // namespace
}  // namespace brigade
