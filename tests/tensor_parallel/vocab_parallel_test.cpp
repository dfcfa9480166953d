#include "brigade/tensor_parallel/vocab_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/model_spec/shard.h"
#include "tests/support/compare.h"
#include "tests/support/leaf.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/reference_ops.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kVocabHidden = 6;
constexpr int64_t kVocabTokens = 12;

Tensor local_rows(const Tensor& full, int tp, int rank) {
  const int64_t rows = vocab_rows_per_rank(full.size(0), tp);
  const int64_t begin = std::min(rank * rows, full.size(0));
  const int64_t numel = std::min(rows, full.size(0) - begin);
  Tensor local = torch::zeros({rows, full.size(1)}, full.options());
  local.narrow(0, 0, numel).copy_(full.narrow(0, begin, numel));
  return local;
}

Tensor my_tokens(const Tensor& x, TokenLayout tokens, Communicator& group) {
  if (tokens == TokenLayout::kReplicated)
    return x;
  const int64_t rows = x.size(0) / group.size();
  return x.narrow(0, group.rank() * rows, rows);
}

struct Case {
  int tp;
  int64_t vocab_size;
  TokenLayout tokens;
  torch::ScalarType dtype;
  int64_t taught = 0;  // tokens of a teacher; 0: none
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (int tp : {1, 2, 3, 4}) {
    // 5 over 4 ranks leaves the last one nothing but padding.
    for (int64_t vocab_size : {5, 12}) {
      for (auto tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
        for (auto dtype : {torch::kFloat, torch::kBFloat16}) {
          for (const int64_t taught : {0, 3})
            result.push_back({tp, vocab_size, tokens, dtype, taught});
        }
      }
    }
  }
  return result;
}

std::string describe(const Case& c, int rank) {
  return fmt::format(
      "tp {} rank {} V {} {}{}",
      c.tp,
      rank,
      c.vocab_size,
      c10::toString(c.dtype),
      c.tokens == TokenLayout::kSharded ? " sharded" : "");
}

TEST(VocabParallelEmbedding, EqualsOneTableExactly) {
  for (const Case& c : cases()) {
    torch::manual_seed(3);
    const Tensor full = torch::randn({c.vocab_size, kVocabHidden}).to(c.dtype);
    const Tensor ids =
        torch::randint(c.vocab_size, {kVocabTokens}, torch::kLong);
    const Tensor dy = torch::randn({kVocabTokens, kVocabHidden}).to(c.dtype);
    const Tensor table = testing::leaf(full.to(torch::kFloat));
    torch::embedding(table, ids).backward(dy.to(torch::kFloat));
    testing::run_ranks(c.tp, [&](const CommunicatorPtr& group) {
      const std::string what = describe(c, group->rank());
      const Tensor weight =
          testing::leaf(local_rows(full, c.tp, group->rank()));
      const Tensor y = vocab_parallel_embedding(
          {group, c.tokens}, ids, weight, c.vocab_size);
      EXPECT_TRUE(torch::equal(
          y, my_tokens(full.index_select(0, ids), c.tokens, *group)))
          << what;
      y.backward(my_tokens(dy, c.tokens, *group));
      testing::expect_close(
          weight.grad(),
          local_rows(table.grad(), c.tp, group->rank()),
          testing::tolerance(c.dtype),
          what);
    });
  }
}

TEST(VocabParallelEmbedding, KeepsTheShapeOfReplicatedIds) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const Tensor weight = torch::full({3, 4}, 1.0F);
    const Tensor ids = torch::zeros({2, 6}, torch::kLong);
    EXPECT_EQ(
        vocab_parallel_embedding({group}, ids, weight, 5).sizes(),
        (std::vector<int64_t>{2, 6, 4}));
    EXPECT_EQ(
        vocab_parallel_embedding({group, TokenLayout::kSharded}, ids, weight, 5)
            .sizes(),
        (std::vector<int64_t>{6, 4}));
  });
}

TEST(VocabParallelEmbedding, NamesAnIdOutsideTheVocabulary) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    // 5 lies in the padding of rank 1: a row, but no token.
    EXPECT_THAT(
        [&] {
          vocab_parallel_embedding(
              {group},
              torch::tensor({0, 4, 5}, torch::kLong),
              torch::zeros({3, 4}),
              5);
        },
        ThrowsMessage<DataError>(
            HasSubstr("token 2 is id 5, outside the vocabulary of 5")));
  });
}

TEST(VocabParallelEmbedding, NamesAWeightOfTheWrongShare) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    EXPECT_THAT(
        [&] {
          vocab_parallel_embedding(
              {group},
              torch::zeros({1}, torch::kLong),
              torch::zeros({5, 4}),
              5);
        },
        ThrowsMessage<Error>(HasSubstr(
            "a vocabulary of 5 over 2 ranks has 3 rows a rank, but the "
            "weight is Float [5, 4]")));
  });
}

std::optional<ops::SoftTargets> some_teacher(const Case& c) {
  if (c.taught == 0)
    return std::nullopt;
  const Tensor all =
      torch::log_softmax(torch::randn({kVocabTokens, c.vocab_size}), 1);
  const auto [log_probs, ids] = all.topk(c.taught, 1);
  return ops::SoftTargets{ids, log_probs, 0.75};
}

TEST(VocabParallelCrossEntropy, EqualsOneRankOnAnyVocabulary) {
  for (const Case& c : cases()) {
    torch::manual_seed(5);
    const Tensor full = torch::randn({c.vocab_size, kVocabHidden}).to(c.dtype);
    const Tensor hidden =
        torch::randn({kVocabTokens, kVocabHidden}).to(c.dtype);
    Tensor targets = torch::randint(c.vocab_size, {kVocabTokens}, torch::kLong);
    targets[3] = -100;
    const Tensor plain_hidden = testing::leaf(hidden.to(torch::kFloat));
    const Tensor plain_weight = testing::leaf(full.to(torch::kFloat));
    const auto teacher = some_teacher(c);
    // With a teacher one rank's, which tests/ops compares with whole logits.
    const Tensor expected =
        teacher ? ops::linear_cross_entropy(
                      plain_hidden, plain_weight, targets, {.teacher = teacher})
                : testing::reference::linear_cross_entropy(
                      plain_hidden, plain_weight, targets);
    expected.backward(torch::tensor(0.25F));
    testing::run_ranks(c.tp, [&](const CommunicatorPtr& group) {
      const std::string what = describe(c, group->rank());
      const double limit = testing::tolerance(c.dtype);
      const Tensor x = testing::leaf(my_tokens(hidden, c.tokens, *group));
      const Tensor weight =
          testing::leaf(local_rows(full, c.tp, group->rank()));
      const Tensor loss = vocab_parallel_cross_entropy(
          {group, c.tokens},
          x,
          weight,
          targets,
          {.row_chunk = 5, .teacher = teacher, .vocab_size = c.vocab_size});
      EXPECT_EQ(loss.scalar_type(), torch::kFloat);
      testing::expect_close(loss, expected.detach(), limit, what);
      loss.backward(torch::tensor(0.25F));
      testing::expect_close(
          x.grad(),
          my_tokens(plain_hidden.grad(), c.tokens, *group),
          limit,
          what + " hidden");
      const Tensor expected_weight =
          local_rows(plain_weight.grad(), c.tp, group->rank());
      EXPECT_LE(
          (weight.grad().to(torch::kFloat) - expected_weight)
              .abs()
              .max()
              .item<double>(),
          limit * plain_weight.grad().abs().max().item<double>())
          << what << " weight";
    });
  }
}

TEST(
    VocabParallelCrossEntropy,
    ExchangesTwelveBytesATokenAndOneHiddenGradient) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const Tensor hidden = testing::leaf(torch::ones({8, kVocabHidden}));
    const Tensor weight = testing::leaf(torch::ones({4, kVocabHidden}));
    group->clear_records();
    const Tensor loss = vocab_parallel_cross_entropy(
        {group},
        hidden,
        weight,
        torch::zeros({8}, torch::kLong),
        {.row_chunk = 4, .vocab_size = 7});
    auto records = group->records();
    ASSERT_EQ(records.size(), 4U);  // two chunks of two
    EXPECT_EQ(records[0].bytes, 4 * 4);
    EXPECT_EQ(records[1].bytes, 4 * 8);
    group->clear_records();
    loss.backward();
    records = group->records();
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].op, Collective::kAllReduce);
    EXPECT_EQ(records[0].bytes, 8 * kVocabHidden * 4);
  });
}

TEST(VocabParallelLogits, HaveTheVocabularysColumnsOnEveryRank) {
  for (int tp : {1, 2, 3}) {
    torch::manual_seed(6);
    const Tensor full = torch::randn({7, kVocabHidden});
    const Tensor hidden = torch::randn({2, kVocabHidden});
    testing::run_ranks(tp, [&](const CommunicatorPtr& group) {
      testing::expect_close(
          vocab_parallel_logits(
              {group}, hidden, local_rows(full, tp, group->rank()), 7),
          torch::matmul(hidden, full.t()),
          1e-6,
          "logits");
    });
  }
}

}  // namespace
}  // namespace brigade
