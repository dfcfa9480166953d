#include "brigade/comm/agreement.h"

#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

TEST(Agreement, OnNumbers) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      const Agreement agreement(*world);
      EXPECT_EQ(
          agreement.sum(10 + world->rank()),
          10 * ranks + ranks * (ranks - 1) / 2);
      EXPECT_EQ(agreement.min(10 + world->rank()), 10);
      EXPECT_EQ(agreement.max(10 + world->rank()), 9 + ranks);
      const std::vector<int64_t> values{world->rank(), -world->rank()};
      EXPECT_EQ(agreement.max(values), (std::vector<int64_t>{ranks - 1, 0}));
      EXPECT_EQ(
          agreement.values_of(ranks - 1, values),
          (std::vector<int64_t>{ranks - 1, 1 - ranks}));
    });
  }
}

TEST(Agreement, OnTexts) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      const Agreement agreement(*world);
      // Texts of different lengths, one of them empty.
      const auto of = [](int rank) {
        return std::string(static_cast<size_t>(rank), 'x');
      };
      const auto texts = agreement.texts(of(world->rank()));
      ASSERT_EQ(texts.size(), static_cast<size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(texts[static_cast<size_t>(rank)], of(rank));
        EXPECT_EQ(agreement.text_of(rank, of(world->rank())), of(rank));
      }
    });
  }
}

TEST(Agreement, FindsTheLowestRankThatDiffersFromRank0) {
  run_ranks(3, [&](const CommunicatorPtr& world) {
    const Agreement agreement(*world);
    EXPECT_FALSE(agreement.find_difference("same").has_value());
    const char* mine = world->rank() == 0 ? "a" : world->rank() == 1 ? "a" : "";
    const auto found = agreement.find_difference(mine);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->rank, 2);
    EXPECT_EQ(found->of_rank_0, "a");
    EXPECT_EQ(found->of_rank, "");
  });
}

}  // namespace
}  // namespace brigade
