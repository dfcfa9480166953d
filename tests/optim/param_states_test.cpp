#include "brigade/optim/param_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/adamw.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/optimizer_state.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

// Three parameters in one bucket: "a" has 7 elements, "b" 3 that nothing steps,
// "c" 2 by 4.
std::unique_ptr<GradSync> make_states_sync(
    const CommunicatorPtr& group,
    Sharding sharding) {
  std::vector<Param> params{
      {"a", torch::zeros({7}).requires_grad_()},
      {"b", torch::zeros({3}).requires_grad_()},
      {"c", torch::zeros({2, 4}).requires_grad_()}};
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.order = BucketOrder::kRegistration;
  options.sharding = sharding;
  return std::make_unique<BucketedGradSync>(std::move(params), group, options);
}

AdamW make_states_optimizer(const GradSync& sync) {
  return {
      make_optimizer_groups(sync, {0, kNoGroup, 0}, {{.weight_decay = 0.1}}),
      {}};
}

class ParamStatesTest : public ::testing::TestWithParam<Sharding> {};

TEST_P(ParamStatesTest, WholeStatesThatWereKeptAreGatheredOnEveryRank) {
  run_ranks(3, [](const CommunicatorPtr& group) {
    const auto sync = make_states_sync(group, GetParam());
    AdamW optimizer = make_states_optimizer(*sync);
    note_states(*sync, optimizer);
    const ParamSet& set = sync->param_set();
    for (int param = 0; param < 3; ++param) {
      std::vector<State> whole = set.zero_states(param);
      ASSERT_EQ(whole.size(), param == 1 ? 0U : 2U);
      for (size_t k = 0; k < whole.size(); ++k) {
        const torch::Tensor& tensor = whole[k].tensor;
        tensor.copy_(
            torch::arange(tensor.numel()).view(tensor.sizes()) +
            (100.0 * param + 10.0 * static_cast<double>(k)));
      }
      set.keep_states(param, whole);
    }
    for (const FlatSegment& segment : sync->segments()) {
      const auto gathered = set.gather_states(segment);
      for (size_t s = 0; s < gathered.size(); ++s) {
        const int param = segment.slots[s].param;
        ASSERT_EQ(gathered[s].size(), param == 1 ? 0U : 2U);
        for (size_t k = 0; k < gathered[s].size(); ++k) {
          const torch::Tensor& tensor = gathered[s][k].tensor;
          EXPECT_EQ(
              tensor.sizes(),
              sync->params()[static_cast<size_t>(param)].tensor.sizes());
          EXPECT_TRUE(torch::equal(
              tensor.flatten(),
              torch::arange(tensor.numel()) +
                  (100.0F * static_cast<float>(param) +
                   10.0F * static_cast<float>(k))));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shardings,
    ParamStatesTest,
    ::testing::Values(
        Sharding::kNone,
        Sharding::kOptimizer,
        Sharding::kGradients));

TEST(ParamStates, GatheringAndLoadingRestoreTheFormerStates) {
  const auto sync =
      make_states_sync(testing::make_world_of_one(), Sharding::kNone);
  AdamW optimizer = make_states_optimizer(*sync);
  AdamW other = make_states_optimizer(*sync);
  note_states(*sync, optimizer);
  const torch::Tensor mine = sync->params()[0].states.at(0).tensor;
  {
    const NotedStates noted(*sync, other);
    EXPECT_FALSE(sync->params()[0].states.at(0).tensor.is_alias_of(mine));
  }
  load_optimizer_state(*sync, other, gather_optimizer_state(*sync, other));
  EXPECT_TRUE(sync->params()[0].states.at(0).tensor.is_alias_of(mine));
}

TEST(ParamStates, AnOptimizerOverAPartIsRefusedOnEveryRank) {
  run_ranks(2, [](const CommunicatorPtr& group) {
    const auto sync = make_states_sync(group, Sharding::kOptimizer);
    // Rank 0 steps a part of "a"; rank 1 owns "c" alone and steps nothing.
    const FlatSegment& segment = sync->segments()[0];
    const int64_t left_out = group->rank() == 0 ? 2 : 0;
    const int64_t numel = sync->params()[0].owned.numel - left_out;
    std::vector<OptimizerGroup> groups;
    if (numel > 0)
      groups.push_back(
          {.name = "part",
           .weight = segment.owned_weight().narrow(0, 0, numel),
           .main_grad = segment.owned_main_grad().narrow(0, 0, numel)});
    AdamW optimizer(std::move(groups), AdamWOptions{});
    EXPECT_THAT(
        [&] { note_states(*sync, optimizer); },
        ThrowsMessage<UsageError>(HasSubstr("steps only some elements of")));
  });
}

TEST(ParamStates, AnOptimizerOfOtherMemoryIsRefused) {
  const auto sync =
      make_states_sync(testing::make_world_of_one(), Sharding::kNone);
  AdamW other(
      {{"elsewhere", torch::zeros({4}), torch::zeros({4})}}, AdamWOptions{});
  EXPECT_THROW(note_states(*sync, other), UsageError);
}

}  // namespace
}  // namespace brigade
