#include "brigade/kernels/aten/document_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade::ops {
namespace {

using ::testing::ElementsAre;

torch::Tensor starts(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<torch::Tensor> parts;
  for (const auto& row : rows)
    parts.push_back(torch::tensor(row, torch::kLong));
  return torch::stack(parts);
}

TEST(DocumentBounds, EachRowHasItsOwn) {
  const auto found =
      document_bounds(starts({{0, 0, 2, 2, 2}, {0, 1, 2, 2, 2}}));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->bounds, ElementsAre(0, 2, 5, 6, 7, 10));
  EXPECT_EQ(found->longest, 3);
}

TEST(DocumentBounds, ADocumentMayHaveBegunBeforeItsRow) {
  const auto found = document_bounds(starts({{-3, -3, -3, 3}}));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->bounds, ElementsAre(0, 3, 4));
  EXPECT_EQ(found->longest, 3);
}

TEST(DocumentBounds, DoNotExistWhereQueriesDisagree) {
  EXPECT_FALSE(document_bounds(starts({{0, 0, 1, 1}})));  // an overlap
  EXPECT_FALSE(document_bounds(starts({{0, 0, 2, 0}})));  // back again
}

TEST(DocumentBounds, WholeRowsAreOneDocumentEach) {
  const DocumentBounds rows = rows_as_documents(2, 7);
  EXPECT_THAT(rows.bounds, ElementsAre(0, 7, 14));
  EXPECT_EQ(rows.longest, 7);
}

}  // namespace
}  // namespace brigade::ops
