#include "brigade/data/batch_sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "brigade/data/mixture.h"
#include "brigade/data/permutation.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;

TEST(Permutation, IsABijectionForEverySizeAndSeed) {
  for (uint64_t size = 1; size <= 300; ++size) {
    for (uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
      const Permutation permutation(size, seed);
      std::vector<bool> seen(size, false);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t value = permutation(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << size << " " << seed << " " << i;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, HoldsAtSizesNearTheEndOf64Bits) {
  // Too many to visit all: equal values among so many positions would only
  // occur in a broken bijection.
  const uint64_t size = ~0ULL - 4;
  const Permutation permutation(size, 7);
  std::set<uint64_t> values;
  for (uint64_t i = 0; i < 1000; ++i) {
    values.insert(permutation(i));
    values.insert(permutation(size - 1 - i));
  }
  EXPECT_EQ(values.size(), 2000U);
  EXPECT_LT(*values.rbegin(), size);
}

TEST(Permutation, SendsEachElementEverywhereEquallyOften) {
  // Pearson's chi-square over the 24 orders of 4 elements and over the place
  // of one of 10; the bounds are the 1 - 1e-6 quantiles.
  constexpr int kSeeds = 24000;
  std::map<std::vector<uint64_t>, int> orders;
  std::vector<int> places(10, 0);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Permutation four(4, seed);
    ++orders[{four(0), four(1), four(2), four(3)}];
    ++places[Permutation(10, seed)(3)];
  }
  ASSERT_EQ(orders.size(), 24U);
  double chi_square = 0;
  for (const auto& [order, count] : orders)
    chi_square += std::pow(count - kSeeds / 24.0, 2) / (kSeeds / 24.0);
  EXPECT_LT(chi_square, 73.0);  // 23 degrees of freedom
  chi_square = 0;
  for (const int count : places)
    chi_square += std::pow(count - kSeeds / 10.0, 2) / (kSeeds / 10.0);
  EXPECT_LT(chi_square, 46.0);  // 9 degrees of freedom
}

TEST(Permutation, NeighboursLandUncorrelated) {
  constexpr uint64_t kSize = 10007;
  const Permutation permutation(kSize, 3);
  double covariance = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    const double centre = (kSize - 1) / 2.0;
    covariance += (static_cast<double>(permutation(i)) - centre) *
                  (static_cast<double>(permutation(i + 1)) - centre);
  }
  const double variance = (double(kSize) * kSize - 1) / 12;
  // Five standard deviations of 1 / sqrt(n).
  EXPECT_LT(std::abs(covariance / kSize / variance), 0.05);
}

TEST(BatchSampler, BlocksArePermutedByThemselvesWhateverFollows) {
  constexpr uint64_t kBlock = 10;
  const auto order = [](uint64_t windows, uint64_t epoch) {
    const BatchSampler sampler(
        {.windows = {5, 5 + windows}, .seed = 9, .shuffle_block = kBlock});
    std::vector<uint64_t> result;
    for (uint64_t i = 0; i < windows; ++i)
      result.push_back(sampler.window(epoch * windows + i));
    return result;
  };
  const auto whole = order(95, 0);
  for (uint64_t begin = 0; begin < whole.size(); begin += kBlock) {
    std::vector<uint64_t> block(
        whole.begin() + static_cast<long>(begin),
        whole.begin() + static_cast<long>(std::min<size_t>(begin + 10, 95)));
    EXPECT_FALSE(std::is_sorted(block.begin(), block.end()));
    std::sort(block.begin(), block.end());
    for (uint64_t i = 0; i < block.size(); ++i)
      EXPECT_EQ(block[i], 5 + begin + i);
  }
  const auto shorter = order(40, 0);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), whole.begin()));
  EXPECT_NE(order(95, 1), whole);
  EXPECT_EQ(order(kBlock, 0).size(), 10U);
}

TEST(BatchSampler, CountsPicotronsWindows) {
  // Python: len(range(0, total - seq, seq)).
  for (const auto& [tokens, windows] : std::vector<std::pair<int, int>>{
           {0, 0}, {1, 0}, {4, 0}, {5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}})
    EXPECT_EQ(count_windows(static_cast<uint64_t>(tokens), 4), windows);
}

TEST(BatchSampler, EveryEpochVisitsEachWindowOnceInAnOrderOfItsOwn) {
  const WindowRange range{17, 17 + 101};
  const BatchSampler sampler({.windows = range, .seed = 5});
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<uint64_t> order;
    for (uint64_t i = 0; i < range.size(); ++i) {
      EXPECT_EQ(sampler.epoch(epoch * range.size() + i), epoch);
      order.push_back(sampler.window(epoch * range.size() + i));
    }
    orders.insert(order);
    std::sort(order.begin(), order.end());
    for (uint64_t i = 0; i < range.size(); ++i)
      EXPECT_EQ(order[i], range.begin + i);
  }
  EXPECT_EQ(orders.size(), 4U);
}

TEST(BatchSampler, WithoutShuffleTheOrderIsTheFiles) {
  const BatchSampler sampler({.windows = {3, 6}, .shuffle = false});
  std::vector<uint64_t> order;
  for (uint64_t g = 0; g < 7; ++g)
    order.push_back(sampler.window(g));
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 4, 5, 3, 4, 5, 3}));
}

TEST(BatchSampler, TheSeedChangesTheOrder) {
  const BatchSampler a({.windows = {0, 1000}, .seed = 1});
  const BatchSampler b({.windows = {0, 1000}, .seed = 2});
  int equal = 0;
  for (uint64_t g = 0; g < 1000; ++g)
    equal += a.window(g) == b.window(g);
  EXPECT_LT(equal, 20);  // one is expected
}

TEST(BatchSampler, AStepHoldsTheSameSamplesInEveryLayout) {
  constexpr int64_t kGlobalBatch = 24;
  for (int64_t dp = 1; dp <= kGlobalBatch; ++dp) {
    for (int64_t rows = 1; rows <= kGlobalBatch; ++rows) {
      if (kGlobalBatch % (dp * rows) != 0)
        continue;
      BatchLayout layout{
          .micro_batch_size = rows,
          .accumulation_steps = kGlobalBatch / dp / rows,
          .dp_size = dp};
      ASSERT_EQ(layout.global_batch_size(), uint64_t{kGlobalBatch});
      for (const uint64_t step : {0ULL, 7ULL, 1ULL << 40}) {
        std::set<uint64_t> samples;
        for (layout.dp_rank = 0; layout.dp_rank < dp; ++layout.dp_rank) {
          for (int64_t m = 0; m < layout.accumulation_steps; ++m) {
            for (int64_t row = 0; row < rows; ++row)
              samples.insert(sample_index(layout, step, m, row));
          }
        }
        EXPECT_EQ(samples.size(), size_t{kGlobalBatch});
        EXPECT_EQ(*samples.begin(), step * kGlobalBatch);
        EXPECT_EQ(*samples.rbegin(), (step + 1) * kGlobalBatch - 1);
      }
    }
  }
}

TEST(BatchSampler, TheHeldOutSplitIsTheEndAndNeverEverything) {
  const WindowSplit split = split_windows(100, 0.05, "x");
  EXPECT_EQ(split.training, (WindowRange{0, 95}));
  EXPECT_EQ(split.held_out, (WindowRange{95, 100}));
  EXPECT_EQ(split_windows(100, 0, "x").held_out.size(), 0U);
  EXPECT_EQ(split_windows(100, 0.001, "x").held_out.size(), 1U);
  EXPECT_THAT(
      message_of<DataError>([] { split_windows(1, 0.01, "some/path"); }),
      HasSubstr("'some/path' holds 1 window(s)"));
}

TEST(MixtureOrder, UsesEverySampleOfEverySourceOnceAndInOrder) {
  const MixtureOrder order({0.5, 0.3, 0.2});
  std::vector<uint64_t> next(3, 0);
  for (uint64_t g = 0; g < 2 * MixtureOrder::kPeriod + 10; ++g) {
    const auto place = order(g);
    ASSERT_LT(place.source, 3U);
    ASSERT_EQ(place.sample, next[place.source]++) << g;
  }
}

TEST(MixtureOrder, EveryPrefixIsCloseToTheProportions) {
  const std::vector<double> weights{7, 0.01, 2.5, 0.49};
  const MixtureOrder order(weights);
  std::vector<double> counts(weights.size(), 0);
  for (uint64_t g = 0; g < MixtureOrder::kPeriod; ++g) {
    ++counts[order(g).source];
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LT(
          std::abs(counts[i] - weights[i] / 10 * static_cast<double>(g + 1)),
          2.0)
          << "source " << i << " after " << g;
    }
  }
}

TEST(MixtureOrder, WeightsThatCannotBeHonouredAreRefusedByPointer) {
  EXPECT_THAT(
      message_of<ConfigError>([] {
        MixtureOrder({1, 0, -1});
      }),
      ::testing::AllOf(
          HasSubstr("/dataset/mixture/1/weight"),
          HasSubstr("/dataset/mixture/2/weight")));
  EXPECT_THAT(
      message_of<ConfigError>([] {
        MixtureOrder({1, 1e-9});
      }),
      HasSubstr("/dataset/mixture/1/weight"));
  EXPECT_THAT(
      message_of<ConfigError>([] {
        MixtureOrder({1, NAN});
      }),
      HasSubstr("/dataset/mixture/1/weight"));
}

}  // namespace
}  // namespace brigade
