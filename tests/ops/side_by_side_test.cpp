#include "brigade/ops/side_by_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/ops/rotary.h"

namespace brigade::ops {
namespace {

using ::testing::ElementsAre;

TEST(SideBySide, IsFoundInAnyOrder) {
  const Tensor buffer = torch::arange(4 * 6, torch::kFloat).view({4, 6});
  const auto found =
      side_by_side({buffer.narrow(1, 2, 4), buffer.narrow(1, 0, 2)});
  ASSERT_TRUE(found);
  EXPECT_THAT(found->column, ElementsAre(2, 0));
  EXPECT_EQ(found->columns, 6);
  EXPECT_TRUE(torch::equal(found->whole, buffer));
}

TEST(SideBySide, IsNothingWithAGapOrInAnotherBuffer) {
  const Tensor buffer = torch::zeros({4, 6});
  EXPECT_FALSE(side_by_side({buffer.narrow(1, 0, 2), buffer.narrow(1, 3, 3)}));
  EXPECT_FALSE(side_by_side({buffer.narrow(1, 0, 3), torch::zeros({4, 3})}));
  EXPECT_FALSE(side_by_side({buffer.narrow(1, 0, 3), Tensor()}));
}

TEST(OneBelowAnother, IsFoundInAnyOrder) {
  const Tensor flat = torch::arange(18, torch::kFloat);
  const Tensor first = flat.narrow(0, 3, 6).view({2, 3});
  const Tensor second = flat.narrow(0, 9, 9).view({3, 3});
  const auto found = one_below_another({second, first});
  ASSERT_TRUE(found);
  EXPECT_THAT(found->column, ElementsAre(2, 0));
  EXPECT_EQ(found->columns, 5);
  EXPECT_TRUE(torch::equal(found->whole, torch::cat({first, second})));
  // The whole is the parts' memory.
  found->whole[4][2] = -1.0F;
  EXPECT_EQ(flat[17].item<float>(), -1.0F);
}

TEST(OneBelowAnother, IsNothingWithAGapAnOverlapOrAnotherWidth) {
  const Tensor flat = torch::zeros({24});
  const auto part = [&](int64_t begin, int64_t rows, int64_t columns) {
    return flat.narrow(0, begin, rows * columns).view({rows, columns});
  };
  EXPECT_TRUE(one_below_another({part(0, 2, 3), part(6, 2, 3)}));
  EXPECT_FALSE(one_below_another({part(0, 2, 3), part(7, 2, 3)}));
  EXPECT_FALSE(one_below_another({part(0, 2, 3), part(5, 2, 3)}));
  EXPECT_FALSE(one_below_another({part(0, 2, 3), part(6, 3, 2)}));
  EXPECT_FALSE(one_below_another({part(0, 2, 3), part(6, 3, 3).t()}));
  EXPECT_FALSE(one_below_another({part(0, 2, 3), Tensor()}));
}

// Into memory by heads, from a slice of a wider row.
TEST(RotateInto, RotatesWithATableAndCopiesWithout) {
  torch::manual_seed(1);
  const RotaryTable table =
      make_rotary_table(torch::arange(3, 8, torch::kLong), 6, 100.0);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const Tensor x = torch::randn({2, 5, 4, 6}).to(dtype).narrow(2, 1, 3);
    const Tensor y = torch::empty({2, 3, 5, 6}, dtype).transpose(1, 2);
    rotate_into(y, x, std::nullopt);
    EXPECT_TRUE(torch::equal(y, x));
    rotate_into(y, x, table);
    const Tensor rotated = rotary(x, x, table).first;
    EXPECT_TRUE(torch::equal(y, rotated)) << dtype;
    EXPECT_FALSE(torch::equal(y, x));
  }
}

}  // namespace
}  // namespace brigade::ops
