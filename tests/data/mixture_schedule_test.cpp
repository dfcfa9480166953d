#include "brigade/data/mixture_schedule.h"

#include <gmock/gmock.h>

#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using Tables = std::vector<WeightTable>;

TEST(MixtureSchedule, WithoutAChangeIsTheOrderOfFixedWeights) {
  const std::vector<double> weights = {3, 0.5, 1.25};
  const MixtureOrder order(weights);
  const MixtureSchedule schedule(Tables{{{0, 3}}, {{7, 0.5}}, {{0, 1.25}}});
  // More than twice around MixtureOrder's table.
  for (uint64_t sample = 0; sample < 2 * MixtureOrder::kPeriod + 5000; ++sample)
    ASSERT_EQ(schedule(sample), order(sample)) << sample;
}

TEST(MixtureSchedule, UsesEverySampleOfEverySourceOnceAndInOrder) {
  const MixtureSchedule schedule(
      Tables{{{0, 1}, {5000, 0}, {9000, 2}}, {{100, 0}, {4000, 3}}, {{0, 1}}});
  std::vector<uint64_t> next(3, 0);
  for (uint64_t sample = 0; sample < 20000; ++sample) {
    if (sample % 1234 == 0) {
      ASSERT_EQ(schedule.counts(sample), next);
    }
    const auto place = schedule(sample);
    ASSERT_EQ(place.sample, next.at(place.source)++) << sample;
  }
}

// A weight falls from 1 to 0 over N samples, beside one that rises from 0 to 1:
// its count is s - s^2 / 2N after s samples.
TEST(MixtureSchedule, FollowsWeightsThatAreLinearInBetween) {
  constexpr double kSamples = 64000;
  const MixtureSchedule schedule(
      Tables{{{0, 1}, {64000, 0}}, {{0, 0}, {64000, 1}}});
  for (uint64_t sample = 0; sample <= 64000; sample += 1777) {
    const auto s = static_cast<double>(sample);
    // Shares hold for 64 samples, and a source lags by at most one sample.
    EXPECT_NEAR(
        static_cast<double>(schedule.counts(sample)[0]),
        s - s * s / (2 * kSamples),
        34)
        << sample;
  }
  const auto end = schedule.counts(64064)[0];
  EXPECT_EQ(schedule.counts(80000)[0], end);
}

TEST(MixtureSchedule, AChangeFromASampleOnKeepsWhatWasBefore) {
  const MixtureSchedule before(Tables{{{0, 1}}, {{0, 3}}});
  const MixtureSchedule after(Tables{{{0, 1}, {5000, 1}, {5001, 9}}, {{0, 3}}});
  for (uint64_t sample = 0; sample < 5000; ++sample)
    ASSERT_EQ(after(sample), before(sample));
  EXPECT_EQ(after.counts(5000), before.counts(5000));
  EXPECT_GT(after.counts(6000)[0], before.counts(6000)[0] + 400);
}

TEST(MixtureSchedule, AWeightHoldsFromItsPointOn) {
  const MixtureSchedule schedule(Tables{{{16, 1}, {20, 9}}, {{0, 1}}});
  EXPECT_EQ(schedule.counts(20), (std::vector<uint64_t>{10, 10}));
  EXPECT_EQ(schedule.counts(60), (std::vector<uint64_t>{46, 14}));
}

// Counting sample by sample would take forever.
TEST(MixtureSchedule, OneSourceIsCountedAtOnce) {
  const uint64_t endless = uint64_t{1} << 62;
  EXPECT_EQ(
      MixtureSchedule(Tables{{{0, 1}}}).counts(endless),
      std::vector<uint64_t>{endless});
}

TEST(MixtureSchedule, AnySampleCanBeAskedForFirst) {
  const std::vector<WeightTable> tables = {{{0, 1}, {30000, 5}}, {{0, 2}}};
  const MixtureSchedule forward(tables);
  for (const uint64_t sample : {20000, 3, 4095, 4096, 19999})
    EXPECT_EQ(MixtureSchedule(tables)(sample), forward(sample));
}

TEST(MixtureSchedule, AWeightOfZeroGivesNothing) {
  const MixtureSchedule schedule(
      Tables{{{0, 0}, {1000, 0}, {2000, 1}}, {{0, 1}}});
  EXPECT_EQ(schedule.counts(1000)[0], 0U);
  EXPECT_GT(schedule.counts(3000)[0], 500U);
  EXPECT_THAT(
      message_of<ConfigError>([] {
        MixtureSchedule(Tables{{{0, 1}, {10, 0}}, {{0, 0}}});
      }),
      HasSubstr("all weights are 0 at sequence 10"));
}

}  // namespace
}  // namespace brigade
