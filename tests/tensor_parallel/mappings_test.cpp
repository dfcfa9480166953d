#include "brigade/tensor_parallel/mappings.h"

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <functional>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/tensor_parallel/input_region.h"
#include "tests/support/leaf.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

// 10 * rank + 0, 1, 2, ... : every element of every rank is known.
Tensor numbered(const std::vector<int64_t>& shape, int rank) {
  int64_t numel = 1;
  for (int64_t size : shape)
    numel *= size;
  return torch::arange(numel, torch::kFloat).view(shape) + 10.0 * rank;
}

struct Mapped {
  Tensor output;
  Tensor gradient;
};

Mapped apply(
    Tensor (*region)(const Tensor&, const CommunicatorPtr&),
    const CommunicatorPtr& group,
    const Tensor& x,
    const Tensor& output_gradient) {
  const Tensor input = testing::leaf(x);
  const Tensor output = region(input, group);
  output.backward(output_gradient);
  return {output.detach(), input.grad()};
}

Tensor sum_over_ranks(const std::vector<int64_t>& shape, int ranks) {
  Tensor sum = torch::zeros(shape);
  for (int rank = 0; rank < ranks; ++rank)
    sum += numbered(shape, rank);
  return sum;
}

Tensor cat_over_ranks(const std::vector<int64_t>& shape, int ranks, int dim) {
  std::vector<Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(numbered(shape, rank));
  return torch::cat(parts, dim);
}

class Mappings : public ::testing::TestWithParam<int> {};

TEST_P(Mappings, CopySumsGradients) {
  const int size = GetParam();
  testing::run_ranks(size, [&](const CommunicatorPtr& group) {
    const Tensor x = torch::full({3, 5}, 7.0F);
    const auto [output, gradient] =
        apply(copy_region, group, x, numbered({3, 5}, group->rank()));
    EXPECT_TRUE(torch::equal(output, x));
    EXPECT_TRUE(torch::equal(gradient, sum_over_ranks({3, 5}, size)));
  });
}

TEST_P(Mappings, ReduceInPlaceKeepsTheMemory) {
  const int size = GetParam();
  testing::run_ranks(size, [&](const CommunicatorPtr& group) {
    const Tensor x = testing::leaf(numbered({3, 5}, group->rank()));
    const Tensor doubled = x * 2;
    const void* memory = doubled.data_ptr();
    const Tensor output = reduce_region_(doubled, group);
    EXPECT_EQ(output.data_ptr(), memory);
    EXPECT_TRUE(torch::equal(output, 2 * sum_over_ranks({3, 5}, size)));
    output.backward(torch::full({3, 5}, 3.0F));
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3, 5}, 6.0F)));
  });
}

TEST_P(Mappings, ReduceInPlaceRefusesAValueThatAutogradKept) {
  testing::run_ranks(GetParam(), [&](const CommunicatorPtr& group) {
    const Tensor x = testing::leaf(torch::full({3}, 0.5F));
    const Tensor kept_by_its_op = x.exp();
    const Tensor output = reduce_region_(kept_by_its_op, group);
    EXPECT_THROW(output.sum().backward(), c10::Error);
  });
}

TEST_P(Mappings, GatherPutsColumnsTogetherAndCutsTheirGradient) {
  const int size = GetParam();
  testing::run_ranks(size, [&](const CommunicatorPtr& group) {
    const int rank = group->rank();
    const Tensor whole = numbered({2, 3, 4L * size}, 0);
    const Tensor mine = whole.narrow(-1, 4 * rank, 4);
    const auto gathered =
        apply(gather_region, group, numbered({2, 3, 4}, rank), whole);
    EXPECT_TRUE(
        torch::equal(gathered.output, cat_over_ranks({2, 3, 4}, size, -1)));
    EXPECT_TRUE(torch::equal(gathered.gradient, mine));
  });
}

TEST_P(Mappings, TokensAreGatheredAndReducedAlongTheRows) {
  const int size = GetParam();
  testing::run_ranks(size, [&](const CommunicatorPtr& group) {
    const int rank = group->rank();
    const Tensor incoming = numbered({3L * size, 5}, rank);
    const Tensor summed = sum_over_ranks({3L * size, 5}, size);
    const auto gathered =
        apply(gather_tokens, group, numbered({3, 5}, rank), incoming);
    EXPECT_TRUE(torch::equal(gathered.output, cat_over_ranks({3, 5}, size, 0)));
    EXPECT_TRUE(torch::equal(gathered.gradient, summed.narrow(0, 3 * rank, 3)));

    const auto reduced =
        apply(reduce_tokens, group, incoming, numbered({3, 5}, rank));
    EXPECT_TRUE(torch::equal(reduced.output, summed.narrow(0, 3 * rank, 3)));
    EXPECT_TRUE(
        torch::equal(reduced.gradient, cat_over_ranks({3, 5}, size, 0)));
  });
}

TEST_P(Mappings, MoveNoTokensWithoutComplaint) {
  testing::run_ranks(GetParam(), [&](const CommunicatorPtr& group) {
    const auto [output, gradient] =
        apply(reduce_tokens, group, torch::zeros({0, 5}), torch::zeros({0, 5}));
    EXPECT_EQ(output.size(0), 0);
    EXPECT_EQ(gradient.size(0), 0);
  });
}

TEST_P(Mappings, AreTheSameUnderInferenceMode) {
  testing::run_ranks(GetParam(), [](const CommunicatorPtr& group) {
    for (const auto region :
         {copy_region, gather_region, gather_tokens, reduce_tokens}) {
      const Tensor x = numbered({12, 12}, group->rank());
      const Tensor expected = region(x, group);
      const Tensor sum = reduce_region_(x.clone(), group);
      const c10::InferenceMode inference;
      EXPECT_TRUE(torch::equal(region(x.clone(), group), expected));
      EXPECT_TRUE(torch::equal(reduce_region_(x.clone(), group), sum));
    }
  });
}

// ---- gradients of gradients

// d/dx of x -> sum(g^2), g = d f(x) / dx: {g, the gradient of x}, and those of
// `weights` in their .grad.
std::pair<Tensor, Tensor> penalised(
    const std::function<Tensor(const Tensor& x)>& f,
    const Tensor& values) {
  const Tensor x = testing::leaf(values);
  const Tensor gradient =
      torch::autograd::grad({f(x)}, {x}, {}, true, /*create_graph=*/true)[0];
  gradient.square().sum().backward();
  return {gradient.detach(), x.grad()};
}

void expect_close(const Tensor& actual, const Tensor& expected) {
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-9, 1e-9))
      << actual << "\nand not\n"
      << expected;
}

// An MLP cut over the ranks against the whole one.
TEST_P(Mappings, AGradientPenaltyIsThatOfOneRank) {
  const int64_t size = GetParam();
  const auto varied = [](std::vector<int64_t> shape, double phase) {
    return torch::sin(numbered(shape, 0).to(torch::kDouble) * 1.3 + phase);
  };
  const int64_t hidden = 12;
  const int64_t tokens = 12;
  const Tensor values = varied({tokens, 3}, 0);
  const Tensor up = testing::leaf(varied({hidden, 3}, 1));
  const Tensor down = testing::leaf(varied({3, hidden}, 2));
  const auto [gradient, second] = penalised(
      [&](const Tensor& x) {
        return torch::tanh(x.matmul(up.t())).matmul(down.t()).square().sum();
      },
      values);
  testing::run_ranks(
      static_cast<int>(size),
      [&, gradient = gradient, second = second](const CommunicatorPtr& group) {
        const auto mine = [&](const Tensor& whole, int64_t dim) {
          return whole.detach().chunk(size, dim)[group->rank()];
        };
        for (const bool shards_tokens : {false, true}) {
          const Tensor my_up = testing::leaf(mine(up, 0));
          const Tensor my_down = testing::leaf(mine(down, 1));
          const auto mlp = [&](const Tensor& x) {
            const Tensor in =
                shards_tokens ? gather_tokens(x, group) : copy_region(x, group);
            const Tensor part =
                torch::tanh(in.matmul(my_up.t())).matmul(my_down.t());
            const Tensor out = shards_tokens ? reduce_tokens(part, group)
                                             : reduce_region_(part, group);
            return out.square().sum();
          };
          const auto [my_gradient, my_second] =
              penalised(mlp, shards_tokens ? mine(values, 0) : values);
          expect_close(
              my_gradient, shards_tokens ? mine(gradient, 0) : gradient);
          expect_close(my_second, shards_tokens ? mine(second, 0) : second);
          expect_close(my_up.grad(), mine(up.grad(), 0));
          expect_close(my_down.grad(), mine(down.grad(), 1));
        }
      });
}

// Every rank computes the same from columns of which each has some.
TEST_P(Mappings, AGradientPenaltyThroughGatheredColumnsIsThatOfOneRank) {
  const int size = GetParam();
  const Tensor values = torch::sin(numbered({12, 12}, 0).to(torch::kDouble));
  const auto [gradient, second] = penalised(
      [](const Tensor& x) { return torch::tanh(x).pow(3).sum(); }, values);
  testing::run_ranks(
      size,
      [&, gradient = gradient, second = second](const CommunicatorPtr& group) {
        const auto mine = [&](const Tensor& whole) {
          return whole.chunk(size, -1)[group->rank()];
        };
        const auto columns = penalised(
            [&](const Tensor& x) {
              return gather_region(torch::tanh(x), group).pow(3).sum();
            },
            mine(values).clone());
        expect_close(columns.first, mine(gradient));
        expect_close(columns.second, mine(second));
      });
}

TEST(InputRegion, AGradientOfItsGradientIsAnError) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const InputRegion region({group, TokenLayout::kReplicated});
    EXPECT_THAT(
        [&] {
          penalised(
              [&](const Tensor& x) { return region.enter(x).square().sum(); },
              torch::ones({2, 2}));
        },
        ThrowsMessage<Error>(HasSubstr("[input_region] a gradient")));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Mappings, ::testing::Values(1, 2, 3, 4));

TEST(Mappings, NameATensorThatCannotBeCut) {
  testing::run_ranks(2, [&](const CommunicatorPtr& group) {
    EXPECT_THAT(
        [&] {
          reduce_tokens(torch::zeros({5, 3}), group);
        },
        ThrowsMessage<Error>(HasSubstr(
            "dim 0 of Float [5, 3] cannot be cut into 2 equal parts")));
  });
}

class InputRegions : public ::testing::TestWithParam<int> {};

TEST_P(InputRegions, ReduceWhatWasStartedOnce) {
  const int size = GetParam();
  testing::run_ranks(size, [&](const CommunicatorPtr& group) {
    for (const auto tokens :
         {TokenLayout::kReplicated, TokenLayout::kSharded}) {
      const TensorParallel parallel{group, tokens};
      const bool sharded = tokens == TokenLayout::kSharded;
      const Tensor x =
          testing::leaf(torch::full({sharded ? 2 : 2L * size, 3}, 1.0F));
      for (const bool early : {false, true}) {
        x.mutable_grad() = Tensor();
        const InputRegion region(parallel);
        const Tensor entered = region.enter(x);
        ASSERT_EQ(entered.size(0), 2 * size);
        const Tensor gradient = numbered({2L * size, 3}, group->rank());
        group->clear_records();
        if (early)
          region.start(gradient);
        entered.backward(gradient);
        const Tensor summed = sum_over_ranks({2L * size, 3}, size);
        EXPECT_TRUE(torch::equal(
            x.grad(),
            sharded ? summed.narrow(0, 2 * group->rank(), 2) : summed));
        ASSERT_EQ(group->records().size(), 1U);
        EXPECT_EQ(
            group->records()[0].op,
            sharded ? Collective::kReduceScatter : Collective::kAllReduce);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, InputRegions, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace brigade
