// Sums of matrices whose rows are mostly zero, against full sums.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "brigade/comm/self_communicator.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;
using torch::Tensor;

constexpr int64_t kColumns = 19;

// The matrix of `rank`: values in every `every`-th row from its own first one
// on, so that several ranks share some rows and, for every > ranks, no rank has
// others.
Tensor rows_of(int rank, int64_t rows, int64_t every, torch::ScalarType dtype) {
  Tensor matrix = torch::zeros({rows, kColumns}, dtype);
  for (int64_t row = rank; row < rows; row += every) {
    const Tensor values =
        torch::sin(torch::arange(kColumns, dtype) + row * (rank + 1));
    matrix[row].copy_(values);
  }
  matrix[rows - 1].fill_(0.1 * (rank + 1));
  return matrix;
}

struct Case {
  int ranks;
  int64_t rows;
  int64_t every;
  torch::ScalarType dtype;
};

class Rows : public ::testing::TestWithParam<Case> {};

TEST_P(Rows, SumsMatchTheWholeMatrixAndAreEqualOnAllRanks) {
  const Case c = GetParam();
  Tensor expected = torch::zeros({c.rows, kColumns}, c.dtype);
  for (int rank = 0; rank < c.ranks; ++rank)
    expected += rows_of(rank, c.rows, c.every, c.dtype);
  std::mutex mutex;
  std::vector<Tensor> sums;
  run_ranks(c.ranks, [&](const CommunicatorPtr& world) {
    Tensor matrix = rows_of(world->rank(), c.rows, c.every, c.dtype);
    // Two under way at once.
    Tensor other = 2 * matrix;
    const WorkPtr first = world->all_reduce_rows(matrix);
    const WorkPtr second = world->all_reduce_rows(other);
    first->wait();
    second->wait();
    EXPECT_TRUE(torch::equal(other, 2 * matrix));
    const std::lock_guard lock(mutex);
    sums.push_back(matrix);
  });
  for (const Tensor& sum : sums) {
    EXPECT_TRUE(torch::allclose(sum, expected, 1e-6, 1e-6));
    EXPECT_TRUE(torch::equal(sum, sums.front()));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    Rows,
    ::testing::Values(
        Case{2, 200, 7, torch::kFloat},
        Case{2, 64, 8, torch::kDouble},
        Case{3, 65, 11, torch::kFloat},
        Case{4, 1000, 50, torch::kFloat},
        // Too many rows for a sparse sum: everything is summed, in uneven
        // chunks.
        Case{2, 200, 1, torch::kFloat},
        Case{3, 65, 2, torch::kDouble}),
    [](const auto& test) {
      const Case& c = test.param;
      return fmt::format(
          "{}Of{}Rows{}On{}Ranks",
          c.every == 1 ? "All" : fmt::format("Every{}th", c.every),
          c.rows,
          c.dtype == torch::kFloat ? "Float" : "Double",
          c.ranks);
    });

TEST(Rows, ZerosAreNotSent) {
  constexpr int64_t kRows = 300;
  run_ranks(3, [](const CommunicatorPtr& world) {
    Tensor matrix = torch::zeros({kRows, kColumns});
    for (int64_t row = 0; row < 5 + world->rank(); ++row)
      matrix[row * 10].fill_(1);
    const WorkPtr sparse = world->all_reduce_rows(matrix);
    sparse->wait();
    // Rank 2 has the most, 7 rows, which go to both other ranks: as many bytes
    // as a ring sends to sum 3 * 7 / 2 rows.
    EXPECT_EQ(sparse->reduced_bytes(), 3 * 7 * kColumns * 4 / 2);
    Tensor dense = torch::ones({kRows, kColumns});
    const WorkPtr all = world->all_reduce_rows(dense);
    all->wait();
    EXPECT_EQ(all->reduced_bytes(), kRows * kColumns * 4);
    Tensor empty = torch::zeros({kRows, kColumns});
    const WorkPtr none = world->all_reduce_rows(empty);
    none->wait();
    EXPECT_EQ(none->reduced_bytes(), 0);
    const WorkPtr whole = world->all_reduce(empty);
    whole->wait();
    EXPECT_EQ(whole->reduced_bytes(), std::nullopt);
  });
}

TEST(Rows, NansAreSent) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    Tensor matrix = torch::zeros({100, kColumns});
    if (world->rank() == 1)
      matrix[40][kColumns - 1] = std::numeric_limits<float>::quiet_NaN();
    world->all_reduce_rows(matrix)->wait();
    EXPECT_TRUE(matrix[40][kColumns - 1].isnan().item<bool>());
    EXPECT_EQ(matrix.isnan().sum().item<int64_t>(), 1);
  });
}

TEST(Rows, AreUnchangedInAGroupOfOneRank) {
  const auto self = make_self_communicator({});
  const Tensor matrix = rows_of(0, 20, 3, torch::kFloat);
  Tensor sum = matrix.clone();
  self->all_reduce_rows(sum)->wait();
  EXPECT_TRUE(torch::equal(sum, matrix));
}

}  // namespace
}  // namespace brigade
