#include "brigade/ops/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "tests/support/reference_ops.h"

namespace brigade::ops {
namespace {

namespace reference = testing::reference;

struct Problem {
  const char* name;
  int64_t batch;
  int64_t queries;
  int64_t keys;
  int64_t heads;
  int64_t key_heads;
  int64_t head_dim;
  AttentionOptions options;
  bool rotary = false;
};

struct Inputs {
  Tensor q, k, v, dout;
};

Inputs inputs_of(const Problem& p, torch::ScalarType dtype) {
  torch::manual_seed(p.queries * 31 + p.head_dim);
  const auto make = [&](int64_t tokens, int64_t heads) {
    return torch::randn({p.batch, tokens, heads, p.head_dim}).to(dtype);
  };
  return {
      make(p.queries, p.heads),
      make(p.keys, p.key_heads),
      make(p.keys, p.key_heads),
      make(p.queries, p.heads)};
}

AttentionOptions options_of(const Problem& p) {
  AttentionOptions options = p.options;
  if (p.rotary) {
    options.query_rotary = make_rotary_table(
        torch::arange(p.queries, torch::kLong), p.head_dim, 10000.0);
    options.key_rotary = make_rotary_table(
        torch::arange(p.keys, torch::kLong), p.head_dim, 10000.0);
  }
  return options;
}

struct Results {
  Tensor out, lse, dq, dk, dv;
};

template <typename Op>
Results results_of(const Inputs& inputs, torch::ScalarType dtype, Op op) {
  const auto leaf = [&](const Tensor& x) {
    return x.to(dtype).clone().requires_grad_(true);
  };
  const Tensor q = leaf(inputs.q);
  const Tensor k = leaf(inputs.k);
  const Tensor v = leaf(inputs.v);
  const AttentionResult result = op(q, k, v);
  result.out.backward(inputs.dout.to(result.out.scalar_type()));
  const auto wide = [](const Tensor& x) { return x.to(torch::kDouble); };
  return {
      wide(result.out.detach()),
      wide(result.lse.detach()),
      wide(q.grad()),
      wide(k.grad()),
      wide(v.grad())};
}

double relative(const Tensor& value, const Tensor& oracle) {
  return ((value - oracle).norm() / (oracle.norm() + 1.0)).item<double>();
}

Results oracle_of(const Inputs& inputs, const AttentionOptions& options) {
  return results_of(inputs, torch::kDouble, [&](auto q, auto k, auto v) {
    return reference::attention(q, k, v, options);
  });
}

std::vector<Problem> problems() {
  const AttentionOptions causal;
  AttentionOptions whole;
  whole.causal = false;
  AttentionOptions window;
  window.sliding_window = 37;
  AttentionOptions cached;
  cached.query_positions = {{90, 5}};
  AttentionOptions zigzag;
  zigzag.query_positions = {{40, 40}, {200, 40}};
  zigzag.key_positions = {{0, 40}, {240, 40}};
  AttentionOptions documents;
  documents.document_starts = torch::cat({torch::zeros({100}, torch::kLong),
                                          torch::full({50}, 100, torch::kLong)})
                                  .repeat({2, 1});
  documents.document_starts[1].narrow(0, 20, 130).fill_(20);
  AttentionOptions scaled;
  scaled.scale = 0.3;
  // Scores of three standard deviations reach the cap.
  AttentionOptions capped;
  capped.scale = 0.4;
  capped.logit_soft_cap = 2.5;
  AttentionOptions capped_window = window;
  capped_window.logit_soft_cap = 50.0;
  return {
      {"one_token", 1, 1, 1, 1, 1, 40, causal},
      {"head_40", 2, 65, 65, 3, 3, 40, causal},
      {"head_48_rotary", 2, 256, 256, 6, 6, 48, causal, true},
      {"head_64_grouped", 1, 200, 200, 9, 3, 64, causal, true},
      {"head_96", 1, 130, 130, 2, 1, 96, causal},
      {"head_128", 1, 129, 129, 4, 1, 128, causal},
      {"head_256", 1, 70, 70, 2, 2, 256, causal},
      {"head_odd", 1, 50, 50, 2, 1, 7, causal},
      {"not_causal", 2, 90, 33, 2, 2, 32, whole},
      {"window", 1, 300, 300, 2, 1, 32, window},
      {"cached", 1, 5, 95, 4, 2, 32, cached},
      {"zigzag", 1, 80, 80, 2, 2, 32, zigzag},
      {"documents", 2, 150, 150, 2, 2, 32, documents},
      {"scaled", 1, 64, 64, 1, 1, 16, scaled},
      {"soft_cap", 2, 150, 150, 4, 2, 24, capped, true},
      {"soft_cap_window", 1, 300, 300, 2, 1, 32, capped_window},
      {"several_query_blocks", 1, 1100, 1100, 2, 1, 8, window}};
}

class Attention : public ::testing::TestWithParam<Problem> {};

TEST_P(Attention, AgreesWithFloat64) {
  const AttentionOptions options = options_of(GetParam());
  const auto check = [&](Kernels kernels, torch::ScalarType dtype) {
    SCOPED_TRACE(c10::toString(dtype));
    AttentionOptions with = options;
    with.kernels = kernels;
    const Inputs inputs = inputs_of(GetParam(), dtype);
    const Results oracle = oracle_of(inputs, options);
    const Results result =
        results_of(inputs, dtype, [&](auto q, auto k, auto v) {
          return attention(q, k, v, with);
        });
    const double tolerance = dtype == torch::kBFloat16 ? 8e-3
                             : dtype == torch::kFloat  ? 3e-6
                                                       : 1e-12;
    EXPECT_LT(relative(result.out, oracle.out), tolerance);
    EXPECT_LT(relative(result.lse, oracle.lse), tolerance);
    EXPECT_LT(relative(result.dq, oracle.dq), tolerance);
    EXPECT_LT(relative(result.dk, oracle.dk), tolerance);
    EXPECT_LT(relative(result.dv, oracle.dv), tolerance);
  };
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    check(Kernels::kCpu, dtype);
    check(Kernels::kAten, dtype);
  }
  check(Kernels::kAuto, torch::kDouble);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    Attention,
    ::testing::ValuesIn(problems()),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Attention, WithoutKeysSeesNothing) {
  const Problem problem{"", 2, 3, 0, 4, 2, 8, {}, true};
  const AttentionOptions options = options_of(problem);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const Inputs inputs = inputs_of(problem, dtype);
    const Results result =
        results_of(inputs, dtype, [&](auto q, auto k, auto v) {
          return attention(q, k, v, options);
        });
    EXPECT_TRUE(result.out.equal(torch::zeros_like(inputs.q, torch::kDouble)));
    EXPECT_EQ(result.lse.sizes(), torch::IntArrayRef({2, 4, 3}));
    EXPECT_TRUE(
        (result.lse < 0).logical_and(result.lse.isinf()).all().item<bool>());
    EXPECT_TRUE(result.dq.equal(torch::zeros_like(inputs.q, torch::kDouble)));
    const Tensor lse = result.lse.to(torch::kFloat);
    const AttentionGradients halves = attention_backward(
        {.operands = {inputs.q, inputs.k, inputs.v},
         .dout = inputs.dout,
         .lse = lse,
         .delta = torch::zeros_like(lse)},
        options);
    EXPECT_TRUE(halves.dq.equal(torch::zeros_like(inputs.q)));
    EXPECT_EQ(halves.dk.sizes(), inputs.k.sizes());
    EXPECT_EQ(halves.dv.sizes(), inputs.v.sizes());
  }
}

// What PyTorch's users write: scores, softmax and products in bf16.
AttentionResult
in_torchs_ops(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t tokens = q.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const Tensor hidden = torch::ones({tokens, tokens}, torch::kBool).triu(1);
  const Tensor scores =
      (torch::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) * scale)
          .masked_fill(hidden, -1e30);
  const Tensor out =
      torch::matmul(torch::softmax(scores, -1), v.transpose(1, 2));
  return {out.transpose(1, 2), torch::zeros({1})};
}

TEST(AttentionAccuracy, Bf16IsNoFurtherFromFloat64ThanTorchs) {
  const Problem problem{"", 1, 192, 192, 4, 4, 64, {}};
  const Inputs inputs = inputs_of(problem, torch::kBFloat16);
  const Results oracle = oracle_of(inputs, {});
  const Results ours =
      results_of(inputs, torch::kBFloat16, [](auto q, auto k, auto v) {
        return attention(q, k, v);
      });
  const Results torchs = results_of(inputs, torch::kBFloat16, in_torchs_ops);
  EXPECT_LE(relative(ours.out, oracle.out), relative(torchs.out, oracle.out));
  EXPECT_LE(relative(ours.dq, oracle.dq), relative(torchs.dq, oracle.dq));
  EXPECT_LE(relative(ours.dk, oracle.dk), relative(torchs.dk, oracle.dk));
  EXPECT_LE(relative(ours.dv, oracle.dv), relative(torchs.dv, oracle.dv));
}

TEST(AttentionDelta, IsTheDotProductOfEachRowForAnyLayout) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const int64_t head_dim : {1, 5, 48, 128}) {
      const auto values = [&](double shift) {
        const auto wide =
            torch::sin(torch::arange(2 * 3 * 7 * head_dim) * 0.7 + shift);
        // [2, 7, 3, D] with heads outermost in memory.
        return wide.view({2, 3, 7, head_dim}).transpose(1, 2).to(dtype);
      };
      const Tensor dout = values(0.1);
      const Tensor out = values(2.0);
      const Tensor oracle = (dout.to(torch::kDouble) * out.to(torch::kDouble))
                                .sum(-1)
                                .transpose(1, 2);
      const Tensor delta = attention_delta(dout, out);
      EXPECT_EQ(delta.scalar_type(), torch::kFloat);
      EXPECT_LT((delta - oracle).abs().max().item<double>(), 2e-5);
    }
  }
}

// Ring attention in small: keys in two parts, merged by lse; the backward of
// each part takes the whole's lse and delta.
TEST(Attention, PartsMergeByTheirLse) {
  const Problem problem{"", 2, 96, 96, 4, 2, 48, {}};
  const Inputs inputs = inputs_of(problem, torch::kBFloat16);
  const Results oracle = oracle_of(inputs, {});
  std::vector<AttentionResult> parts;
  std::vector<AttentionOptions> options;
  for (const int64_t begin : {0, 48}) {
    AttentionOptions part;
    part.key_positions = {{begin, 48}};
    part.out_dtype = torch::kFloat;
    options.push_back(part);
    parts.push_back(attention_forward(
        {inputs.q,
         inputs.k.narrow(1, begin, 48),
         inputs.v.narrow(1, begin, 48)},
        part));
  }
  // The first queries see nothing of the second part.
  EXPECT_TRUE(torch::isinf(parts[1].lse.narrow(2, 0, 48)).all().item<bool>());
  const Tensor lse = torch::logaddexp(parts[0].lse, parts[1].lse);
  Tensor out = torch::zeros_like(parts[0].out);
  for (const AttentionResult& part : parts)
    out += part.out * (part.lse - lse).exp().transpose(1, 2).unsqueeze(-1);
  EXPECT_LT(relative(out.to(torch::kDouble), oracle.out), 4e-3);
  const Tensor delta = attention_delta(inputs.dout, out);
  Tensor dq = torch::zeros_like(out);
  std::vector<Tensor> dk;
  for (size_t i = 0; i < 2; ++i) {
    const AttentionGradients gradients = attention_backward(
        {.operands =
             {inputs.q,
              inputs.k.narrow(1, i * 48, 48),
              inputs.v.narrow(1, i * 48, 48)},
         .dout = inputs.dout,
         .lse = lse,
         .delta = delta},
        options[i]);
    dq += gradients.dq;
    dk.push_back(gradients.dk);
  }
  EXPECT_LT(relative(dq.to(torch::kDouble), oracle.dq), 8e-3);
  EXPECT_LT(relative(torch::cat(dk, 1).to(torch::kDouble), oracle.dk), 8e-3);
}

TEST(Attention, AQueryThatSeesNoKeyIsZero) {
  AttentionOptions options;
  options.key_positions = {{10, 4}};
  const Tensor q = torch::randn({1, 4, 2, 16});
  const AttentionResult result = attention(q, q, q, options);
  EXPECT_EQ(result.out.abs().sum().item<float>(), 0.0F);
  EXPECT_TRUE(torch::isneginf(result.lse).all().item<bool>());
}

TEST(Attention, GradientsLieSideBySideAsTheInputsDo) {
  const Tensor fused = torch::randn({1, 8, 3 * 32}).requires_grad_(true);
  const auto part = [&](int64_t i) {
    return fused.narrow(2, i * 32, 32).view({1, 8, 2, 16});
  };
  const AttentionResult result = attention(part(2), part(1), part(0));
  const Tensor dout = torch::ones({1, 8, 2, 16});
  const AttentionGradients gradients = attention_backward(
      {.operands = {part(2), part(1), part(0)},
       .dout = dout,
       .lse = result.lse,
       .delta = attention_delta(dout, result.out)},
      {});
  EXPECT_EQ(gradients.dv.stride(1), 96);
  EXPECT_EQ(
      gradients.dk.data_ptr<float>() - gradients.dv.data_ptr<float>(), 32);
  EXPECT_EQ(
      gradients.dq.data_ptr<float>() - gradients.dv.data_ptr<float>(), 64);
}

TEST(Attention, HeadsThatDoNotFitAreNamed) {
  const Tensor q = torch::zeros({1, 4, 3, 16});
  const Tensor k = torch::zeros({1, 4, 2, 16});
  EXPECT_THAT(
      [&] { attention(q, k, k); },
      ::testing::ThrowsMessage<Error>(
          ::testing::HasSubstr("Float [1, 4, 3, 16]")));
}

}  // namespace
}  // namespace brigade::ops
