#include "brigade/schedule/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace brigade {
namespace {

std::vector<BucketParam> params_of(const std::vector<int64_t>& numels) {
  std::vector<BucketParam> params;
  for (size_t i = 0; i < numels.size(); ++i)
    params.push_back(
        {.name = std::string("p").append(std::to_string(i)),
         .numel = numels[i]});
  return params;
}

std::vector<int> in_order(const BucketPlan& plan) {
  std::vector<int> order;
  for (const auto& bucket : plan.buckets)
    for (const auto& slot : bucket.slots)
      order.push_back(slot.param);
  return order;
}

TEST(BucketPlan, KeepsTheGivenOrder) {
  const auto params = params_of({10, 20, 30, 40});
  const auto reverse = initial_order(BucketOrder::kReverse, 4);
  EXPECT_EQ(in_order(plan_buckets(params, reverse, {})), reverse);
  const auto registration = initial_order(BucketOrder::kRegistration, 4);
  EXPECT_EQ(
      in_order(plan_buckets(params, registration, {})),
      (std::vector<int>{0, 1, 2, 3}));
}

TEST(BucketPlan, EachGroupOfRanksHasBucketsOfItsOwn) {
  auto params = params_of({10, 20, 30, 40, 50});
  params[1].group = params[3].group = 1;
  const auto plan = plan_buckets(
      params, initial_order(BucketOrder::kRegistration, 5), {.ranks = 6});
  EXPECT_EQ(in_order(plan), (std::vector<int>{1, 3, 0, 2, 4}));
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].group, 1);
  EXPECT_EQ(plan.buckets[1].group, 0);
  for (const PlannedBucket& bucket : plan.buckets)
    EXPECT_EQ(bucket.numel % 6, 0);
}

TEST(BucketPlan, TheFirstBucketIsSmall) {
  const auto params = params_of(std::vector<int64_t>(64, 64 * KiB / 4));
  const auto plan = plan_buckets(
      params,
      initial_order(BucketOrder::kReverse, 64),
      {.capacity_bytes = 2 * MiB,
       .first_bucket_bytes = 256 * KiB,
       .last_bucket_bytes = 2 * MiB});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].bytes(), 256 * KiB);
  EXPECT_EQ(plan.buckets[1].bytes(), 2 * MiB);
  EXPECT_EQ(plan.buckets[2].bytes(), 4 * MiB - 256 * KiB - 2 * MiB);
}

// 4 MiB are divided into 2, 1, and then no less than the last one.
TEST(BucketPlan, BucketsGrowSmallerTowardsTheEnd) {
  auto params = params_of(std::vector<int64_t>(64, 64 * KiB / 4));
  params.push_back({.name = "embedding", .numel = 16 * MiB});
  params.back().sparse_row_numel = 64;
  const auto bytes = [&](const BucketPlanOptions& options) {
    std::vector<int64_t> result;
    for (const PlannedBucket& bucket :
         plan_buckets(
             params, initial_order(BucketOrder::kRegistration, 65), options)
             .buckets)
      result.push_back(bucket.bytes());
    return result;
  };
  EXPECT_EQ(
      bytes({.first_bucket_bytes = 25 * MiB, .last_bucket_bytes = 384 * KiB}),
      (std::vector<int64_t>{
          2 * MiB, 1 * MiB, 512 * KiB, 384 * KiB, 128 * KiB, 64 * MiB}));
  // The cap holds before that.
  EXPECT_EQ(
      bytes(
          {.capacity_bytes = 1536 * KiB,
           .first_bucket_bytes = 1 * MiB,
           .last_bucket_bytes = 1 * MiB}),
      (std::vector<int64_t>{
          1 * MiB, 1536 * KiB, 1 * MiB, 512 * KiB, 64 * MiB}));
}

TEST(BucketPlan, ACapBelowTheFirstBucketsHoldsForTheFirstToo) {
  const auto plan = plan_buckets(
      params_of(std::vector<int64_t>(8, 64 * KiB / 4)),
      initial_order(BucketOrder::kReverse, 8),
      {.capacity_bytes = 128 * KiB, .first_bucket_bytes = 1 * MiB});
  ASSERT_EQ(plan.buckets.size(), 4U);
  for (const PlannedBucket& bucket : plan.buckets)
    EXPECT_EQ(bucket.bytes(), 128 * KiB);
}

TEST(BucketPlan, AParameterLargerThanTheCapIsABucketOfItsOwn) {
  const auto params = params_of({100, 100000, 100});
  const auto plan = plan_buckets(
      params,
      initial_order(BucketOrder::kReverse, 3),
      {.capacity_bytes = 1000, .first_bucket_bytes = 1000});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[1].slots.size(), 1U);
  EXPECT_EQ(plan.buckets[1].slots[0].param, 1);
}

TEST(BucketPlan, AParameterWithSparseRowsIsABucketOfItsOwn) {
  auto params = params_of({100, 60, 40, 100});
  params[1].sparse_row_numel = 20;
  params[3].sparse_row_numel = 10;
  const auto plan =
      plan_buckets(params, initial_order(BucketOrder::kReverse, 4), {});
  ASSERT_EQ(plan.buckets.size(), 4U);
  const std::vector<int64_t> rows{10, 0, 20, 0};
  for (size_t b = 0; b < 4; ++b) {
    EXPECT_EQ(plan.buckets[b].slots.size(), 1U);
    EXPECT_EQ(plan.buckets[b].slots[0].param, 3 - static_cast<int>(b));
    EXPECT_EQ(plan.buckets[b].sparse_row_numel, rows[b]);
  }
}

TEST(BucketPlan, ABucketHoldsOneDtypeAndLaunchesAfterItsLastParameter) {
  auto params = params_of({1, 2, 3, 4});
  params[0].dtype = params[3].dtype = "BFloat16";
  // Reverse order: 3 (bf16), 2, 1 (float), 0 (bf16).
  const auto plan =
      plan_buckets(params, initial_order(BucketOrder::kReverse, 4), {});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].dtype, "Float");
  EXPECT_EQ(plan.buckets[1].dtype, "BFloat16");
  EXPECT_EQ(plan.buckets[1].slots[1].param, 0);
}

// Checked at any sizes and options: each parameter once, offsets aligned, no
// overlap, ends that divide among the ranks, no bucket over its cap but single
// ones.
TEST(BucketPlan, HoldsItsPromisesForRandomParameters) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int count = 1 + static_cast<int>(random() % 40);
    std::vector<int64_t> numels;
    for (int i = 0; i < count; ++i)
      numels.push_back(1 + static_cast<int64_t>(random() % 5000));
    auto params = params_of(numels);
    for (auto& param : params)
      param.dtype = random() % 3 == 0 ? "BFloat16" : "Float";
    auto order = initial_order(BucketOrder::kReverse, count);
    std::shuffle(order.begin(), order.end(), random);
    const BucketPlanOptions options{
        .capacity_bytes = 4 * (1 + static_cast<int64_t>(random() % 20000)),
        .first_bucket_bytes = 4 * (1 + static_cast<int64_t>(random() % 2000)),
        .last_bucket_bytes = 4 * (1 + static_cast<int64_t>(random() % 2000)),
        .alignment_numel = 1 + static_cast<int64_t>(random() % 64),
        .ranks = 1 + static_cast<int>(random() % 8)};
    const auto plan = plan_buckets(params, order, options);
    EXPECT_EQ(plan, plan_buckets(params, order, options));
    std::set<int> seen;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      const auto& bucket = plan.buckets[b];
      int64_t end = 0;
      for (const auto& slot : bucket.slots) {
        const auto& param = params[static_cast<size_t>(slot.param)];
        EXPECT_TRUE(seen.insert(slot.param).second);
        EXPECT_EQ(param.dtype, bucket.dtype);
        EXPECT_EQ(param.numel, slot.numel);
        EXPECT_EQ(slot.offset % options.alignment_numel, 0);
        EXPECT_GE(slot.offset, end);
        end = slot.offset + slot.numel;
      }
      EXPECT_LE(end, bucket.numel);
      EXPECT_EQ(bucket.numel % options.ranks, 0);
      EXPECT_EQ(bucket.numel % options.alignment_numel, 0);
      if (bucket.slots.size() > 1) {
        EXPECT_LE(
            end * 4,
            std::max(options.capacity_bytes, options.first_bucket_bytes));
      }
    }
    EXPECT_EQ(seen.size(), params.size());
  }
}

}  // namespace
}  // namespace brigade
