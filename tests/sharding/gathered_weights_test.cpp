// Forward waits for the weights of a unit alone.
#include "brigade/sharding/gathered_weights.h"

#include <gtest/gtest.h>

#include <string>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

// Units 0 to 2 of one trained parameter each, and a frozen one of unit 3.
std::unique_ptr<GradSync> make_units_sync(const CommunicatorPtr& ranks) {
  std::vector<Param> params;
  for (int unit = 0; unit < 4; ++unit)
    params.push_back(
        {.name = std::to_string(unit),
         .tensor = torch::ones({4}).requires_grad_(unit < 3),
         .has_own_bucket = true,
         .unit = unit});
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.sharding = Sharding::kOptimizer;
  options.gather = GatherMode::kOverlapForward;
  return std::make_unique<BucketedGradSync>(params, ranks, options);
}

TEST(GatheredWeights, AUnitWaitsForItsOwnTrainedWeightsAlone) {
  testing::run_ranks(2, [](const CommunicatorPtr& ranks) {
    const auto sync = make_units_sync(ranks);
    GatheredWeights& weights = sync->weights();
    sync->gather_weights();
    for (const int unit : {0, 1, 3}) {
      weights.use(unit);
      EXPECT_TRUE(weights.are_under_way()) << unit;
    }
    weights.use(2);
    EXPECT_FALSE(weights.are_under_way());
  });
}

TEST(GatheredWeights, AnUnknownUnitWaitsForAll) {
  testing::run_ranks(2, [](const CommunicatorPtr& ranks) {
    const auto sync = make_units_sync(ranks);
    sync->gather_weights();
    sync->weights().use(4);
    EXPECT_FALSE(sync->weights().are_under_way());
  });
}

}  // namespace
}  // namespace brigade
