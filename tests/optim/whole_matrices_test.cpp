// Matrices in pieces: cut by tensor parallelism, then among ZeRO's owners, or
// equal on several ranks.
#include "brigade/optim/whole_matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/param/param.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

struct Shape {
  int64_t rows;
  int64_t columns;
  int cut;  // by tensor parallelism
};
const std::vector<Shape> kShapes = {
    {6, 4, 0},
    {4, 10, 1},
    {8, 2, 0},
    {2, 2, 1}};

std::string name_of(size_t matrix) {
  return "matrix" + std::to_string(matrix);
}

torch::Tensor values_of(size_t matrix) {
  const Shape& shape = kShapes[matrix];
  return (torch::arange(shape.rows * shape.columns, torch::kFloat) +
          100.0 * static_cast<double>(matrix))
      .view({shape.rows, shape.columns});
}

// Shows every element's place, and a sum that no piece has by itself.
torch::Tensor computed(const torch::Tensor& whole) {
  return whole * 2 + whole.sum();
}

// Ranks of tp x zero x copies, the last the slowest.
struct Grid {
  int tp = 1;
  int zero = 1;
  int copies = 1;
  int size() const { return tp * zero * copies; }
};

struct Held {
  std::vector<MatrixPiece> pieces;
  std::vector<torch::Tensor> values;
  std::vector<torch::Tensor> expected;
};

Held held_by(int rank, const Grid& grid) {
  const int tp_rank = rank % grid.tp;
  const int owner = rank / grid.tp % grid.zero;
  Held held;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const Shape& shape = kShapes[i];
    const int64_t length =
        (shape.cut == 0 ? shape.rows : shape.columns) / grid.tp;
    Slice slice;
    if (grid.tp > 1)
      slice = {shape.cut, tp_rank * length, (tp_rank + 1) * length};
    const auto flat = [&](const torch::Tensor& whole) {
      return take_slice(whole, slice).reshape({-1});
    };
    // Unequal ranges: the first owner has one element less.
    const int64_t numel = flat(values_of(i)).numel();
    const int64_t each = numel / grid.zero;
    const int64_t begin = owner == 0 ? 0 : owner * each - 1;
    const int64_t end = owner == grid.zero - 1 ? numel : (owner + 1) * each - 1;
    if (begin == end)
      continue;
    held.pieces.push_back(
        {.name = name_of(i),
         .place = static_cast<int>(i),
         .rows = shape.rows,
         .columns = shape.columns,
         .slice = slice,
         .begin = begin,
         .numel = end - begin});
    held.values.push_back(
        flat(values_of(i)).narrow(0, begin, end - begin).clone());
    held.expected.push_back(
        flat(computed(values_of(i))).narrow(0, begin, end - begin));
  }
  return held;
}

double flops(int64_t rows, int64_t columns) {
  return static_cast<double>(rows * columns);
}

TEST(WholeMatrices, EachPieceGetsWhatIsComputedOfTheWhole) {
  for (const Grid& grid :
       {Grid{},
        Grid{.tp = 2},
        Grid{.zero = 3},
        Grid{.copies = 2},
        Grid{.tp = 2, .zero = 2},
        Grid{.tp = 2, .copies = 2}}) {
    for (const int64_t round_numel : {1, 50, 1 << 22}) {
      run_ranks(grid.size(), [&](const CommunicatorPtr& ranks) {
        Held held = held_by(ranks->rank(), grid);
        WholeMatrices matrices(
            ranks, held.pieces, {.cost = flops, .round_numel = round_numel});
        // Twice: nothing is kept between calls.
        for (int call = 0; call < 2; ++call) {
          std::vector<torch::Tensor> values;
          for (const torch::Tensor& piece : held.values)
            values.push_back(piece.clone());
          matrices.apply(values, computed);
          for (size_t i = 0; i < values.size(); ++i)
            EXPECT_TRUE(torch::equal(values[i], held.expected[i]))
                << held.pieces[i].name << " on rank " << ranks->rank() << ": "
                << values[i];
        }
      });
    }
  }
}

TEST(WholeMatrices, PiecesSentAheadAreComputed) {
  const Grid grid{.tp = 2, .zero = 2};
  run_ranks(grid.size(), [&](const CommunicatorPtr& ranks) {
    Held held = held_by(ranks->rank(), grid);
    WholeMatrices matrices(
        ranks, held.pieces, {.cost = flops, .round_numel = 1});
    const auto send_all = [&](double factor) {
      for (size_t i = 0; i < held.values.size(); ++i)
        matrices.set(i, held.values[i] * factor);
      matrices.send_ahead();
      matrices.send_rest();
      EXPECT_TRUE(matrices.are_all_ahead());
    };
    send_all(7);
    matrices.drop();
    send_all(1);
    // What comes now was sent.
    std::vector<torch::Tensor> values;
    for (const torch::Tensor& piece : held.values)
      values.push_back(torch::zeros_like(piece));
    for (size_t i = 0; i < values.size(); ++i)
      matrices.set(i, values[i]);
    matrices.begin();
    matrices.finish_but_last(computed);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(
          torch::equal(values[i], held.expected[i]), !matrices.is_of_last(i));
    }
    matrices.finish();
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(torch::equal(values[i], held.expected[i]));
    // The next call is as if nothing had been sent ahead.
    EXPECT_FALSE(matrices.are_all_ahead());
    matrices.apply(held.values, computed);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_TRUE(torch::equal(held.values[i], held.expected[i]));
  });
}

TEST(WholeMatrices, RoundsGoInTheOrderOfPlaces) {
  run_ranks(2, [](const CommunicatorPtr& ranks) {
    std::vector<MatrixPiece> pieces;
    for (int i = 0; i < 4; ++i)
      pieces.push_back(
          {.name = name_of(static_cast<size_t>(i)),
           .place = 3 - i,
           .rows = 2,
           .columns = 2,
           .numel = 4});
    const WholeMatrices matrices(
        ranks, pieces, {.cost = flops, .round_numel = 1});
    EXPECT_THAT(matrices.places_of_last(), ::testing::ElementsAre(2, 3));
    EXPECT_TRUE(matrices.is_of_last(0));
    EXPECT_FALSE(matrices.is_of_last(2));
  });
}

TEST(WholeMatrices, EachIsComputedOnce) {
  std::atomic<int> computations = 0;
  const Grid grid{.tp = 2, .copies = 2};
  run_ranks(grid.size(), [&](const CommunicatorPtr& ranks) {
    const Held held = held_by(ranks->rank(), grid);
    WholeMatrices matrices(ranks, held.pieces, {.cost = flops});
    matrices.apply(held.values, [&](const torch::Tensor& whole) {
      ++computations;
      return whole;
    });
  });
  EXPECT_EQ(computations, static_cast<int>(kShapes.size()));
}

TEST(WholeMatrices, NoOwnerHasMoreThanTheMeanAndOneMatrix) {
  run_ranks(3, [](const CommunicatorPtr& ranks) {
    std::vector<MatrixPiece> pieces;
    double total = 0;
    double most = 0;
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t rows = 1 + i * 7 % 11;
      const int64_t columns = 1 + i * 5 % 13;
      pieces.push_back(
          {.name = name_of(static_cast<size_t>(i)),
           .rows = rows,
           .columns = columns,
           .numel = rows * columns});
      total += flops(rows, columns);
      most = std::max(most, flops(rows, columns));
    }
    const WholeMatrices matrices(ranks, pieces, {.cost = flops});
    const auto& costs = matrices.costs();
    EXPECT_EQ(std::accumulate(costs.begin(), costs.end(), 0.0), total);
    EXPECT_LE(*std::max_element(costs.begin(), costs.end()), total / 3 + most);
  });
}

TEST(WholeMatrices, AMatrixOfWhichAPartIsNowhereIsNamed) {
  run_ranks(2, [](const CommunicatorPtr& ranks) {
    EXPECT_THAT(
        [&] {
          const WholeMatrices matrices(
              ranks,
              {{.name = "weight",
                .rows = 4,
                .columns = 4,
                .begin = 8 * ranks->rank(),
                .numel = 7}},
              {.cost = flops});
        },
        ::testing::ThrowsMessage<Error>(
            ::testing::HasSubstr("of the 16 elements of matrix 'weight'")));
  });
}

}  // namespace
}  // namespace brigade
