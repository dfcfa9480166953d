#include "brigade/ops/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/kernels/cpu/scratch.h"
#include "tests/support/memory_meter.h"
#include "tests/support/reference_ops.h"

namespace brigade::ops {
namespace {

namespace reference = testing::reference;

struct Problem {
  int64_t tokens;
  int64_t columns;
  int64_t vocabulary;
  torch::ScalarType dtype;
};

struct Inputs {
  Tensor hidden;
  Tensor weight;
  Tensor targets;
};

Inputs inputs_of(const Problem& problem) {
  torch::manual_seed(problem.tokens + problem.columns);
  Inputs inputs{
      torch::randn({problem.tokens, problem.columns}).to(problem.dtype),
      (torch::randn({problem.vocabulary, problem.columns}) * 0.3)
          .to(problem.dtype),
      torch::randint(
          problem.vocabulary, {problem.tokens}, torch::dtype(torch::kLong))};
  if (problem.tokens > 2)
    inputs.targets[1] = -100;
  return inputs;
}

struct Results {
  Tensor loss;
  Tensor dhidden;
  Tensor dweight;
};

template <typename Loss>
Results results_of(const Inputs& inputs, torch::ScalarType dtype, Loss loss) {
  const Tensor hidden = inputs.hidden.to(dtype).clone().requires_grad_(true);
  const Tensor weight = inputs.weight.to(dtype).clone().requires_grad_(true);
  const Tensor value = loss(hidden, weight);
  (value * 0.5).backward();
  return {
      value.detach().to(torch::kDouble),
      hidden.grad().to(torch::kDouble),
      weight.grad().to(torch::kDouble)};
}

Results oracle_of(const Inputs& inputs) {
  return results_of(inputs, torch::kDouble, [&](auto hidden, auto weight) {
    return reference::linear_cross_entropy(hidden, weight, inputs.targets);
  });
}

double relative(const Tensor& value, const Tensor& oracle) {
  return ((value - oracle).norm() / (oracle.norm() + 1e-30)).item<double>();
}

class CrossEntropy : public ::testing::TestWithParam<Problem> {};

TEST_P(CrossEntropy, AgreesWithFloat64ForAnySize) {
  const Inputs inputs = inputs_of(GetParam());
  const Results oracle = oracle_of(inputs);
  const bool wide = GetParam().dtype == torch::kFloat;
  const auto check = [&](const CrossEntropyOptions& options) {
    const Results fused =
        results_of(inputs, GetParam().dtype, [&](auto hidden, auto weight) {
          return linear_cross_entropy(hidden, weight, inputs.targets, options);
        });
    EXPECT_LT(relative(fused.loss, oracle.loss), 1e-5);
    EXPECT_LT(relative(fused.dhidden, oracle.dhidden), wide ? 1e-5 : 4e-3);
    EXPECT_LT(relative(fused.dweight, oracle.dweight), wide ? 1e-5 : 4e-3);
  };
  for (const int64_t chunk : {0, 7}) {
    for (const KeepLogits keep : {KeepLogits::kAlways, KeepLogits::kNever})
      check(
          {.row_chunk = chunk, .keep_logits = keep, .kernels = Kernels::kCpu});
    check({.row_chunk = chunk, .kernels = Kernels::kAten});
  }
}

// Not a sum: each token's gradient depends on its loss, and on a place.
Tensor weighted_squares(const Tensor& losses) {
  return (losses.square() *
          (torch::arange(losses.numel(), losses.options()) + 1))
      .sum();
}

TEST_P(CrossEntropy, AnObjectiveOfTheTokensLossesAgreesWithFloat64) {
  const Inputs inputs = inputs_of(GetParam());
  const Results oracle =
      results_of(inputs, torch::kDouble, [&](auto hidden, auto weight) {
        return weighted_squares(torch::nn::functional::cross_entropy(
            torch::matmul(hidden, weight.t()),
            inputs.targets,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(
                torch::kNone)));
      });
  const ObjectiveFunction objective = [](const Tensor& losses) {
    const Tensor places = torch::arange(losses.numel(), losses.options()) + 1;
    return Objective{weighted_squares(losses), 2 * losses * places};
  };
  const bool wide = GetParam().dtype == torch::kFloat;
  for (const int64_t chunk : {0, 7}) {
    for (const Kernels kernels : {Kernels::kCpu, Kernels::kAten}) {
      const Results ours =
          results_of(inputs, GetParam().dtype, [&](auto hidden, auto weight) {
            CrossEntropyOptions options;
            options.row_chunk = chunk;
            options.kernels = kernels;
            options.objective = objective;
            return linear_cross_entropy(
                hidden, weight, inputs.targets, options);
          });
      EXPECT_LT(relative(ours.loss, oracle.loss), 1e-5);
      EXPECT_LT(relative(ours.dhidden, oracle.dhidden), wide ? 1e-5 : 4e-3);
      EXPECT_LT(relative(ours.dweight, oracle.dweight), wide ? 1e-5 : 4e-3);
    }
  }
}

TEST_P(CrossEntropy, SoftCappedLogitsAgreeWithFloat64) {
  const Inputs inputs = inputs_of(GetParam());
  // About as large as the logits, so that it bends them.
  const double cap =
      0.3 * std::sqrt(static_cast<double>(GetParam().columns)) + 0.1;
  const Results oracle =
      results_of(inputs, torch::kDouble, [&](auto hidden, auto weight) {
        const Tensor logits =
            cap * torch::tanh(torch::matmul(hidden, weight.t()) / cap);
        return torch::nn::functional::cross_entropy(
            logits,
            inputs.targets,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(
                torch::kSum));
      });
  const bool wide = GetParam().dtype == torch::kFloat;
  for (const Kernels kernels : {Kernels::kCpu, Kernels::kAten}) {
    const Results ours =
        results_of(inputs, GetParam().dtype, [&](auto hidden, auto weight) {
          return linear_cross_entropy(
              hidden,
              weight,
              inputs.targets,
              {.kernels = kernels, .logit_soft_cap = cap});
        });
    EXPECT_LT(relative(ours.loss, oracle.loss), 1e-5);
    EXPECT_LT(relative(ours.dhidden, oracle.dhidden), wide ? 1e-5 : 4e-3);
    EXPECT_LT(relative(ours.dweight, oracle.dweight), wide ? 1e-5 : 4e-3);
  }
}

TEST(CrossEntropyInFloat64, IsExact) {
  const Inputs inputs = inputs_of({300, 17, 33, torch::kDouble});
  const Results oracle = oracle_of(inputs);
  const Results ours =
      results_of(inputs, torch::kDouble, [&](auto hidden, auto weight) {
        return linear_cross_entropy(hidden, weight, inputs.targets);
      });
  EXPECT_LT(relative(ours.loss, oracle.loss), 1e-12);
  EXPECT_LT(relative(ours.dhidden, oracle.dhidden), 1e-12);
  EXPECT_LT(relative(ours.dweight, oracle.dweight), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    CrossEntropy,
    ::testing::Values(
        Problem{1, 32, 64, torch::kBFloat16},
        Problem{5, 17, 33, torch::kBFloat16},
        Problem{70, 96, 1000, torch::kBFloat16},
        Problem{300, 288, 515, torch::kBFloat16},
        Problem{33, 64, 1, torch::kBFloat16},
        Problem{40, 36, 77, torch::kFloat},
        Problem{300, 64, 515, torch::kFloat}));

class CrossEntropyAccuracy : public ::testing::TestWithParam<KeepLogits> {};

TEST_P(CrossEntropyAccuracy, Bf16IsNoFurtherFromFloat64ThanTorchs) {
  const Inputs inputs = inputs_of({200, 128, 777, torch::kBFloat16});
  const Results oracle = oracle_of(inputs);
  const Results fused =
      results_of(inputs, torch::kBFloat16, [&](auto hidden, auto weight) {
        return linear_cross_entropy(
            hidden, weight, inputs.targets, {.keep_logits = GetParam()});
      });
  const Results torchs =
      results_of(inputs, torch::kBFloat16, [&](auto hidden, auto weight) {
        return torch::nll_loss(
            torch::log_softmax(torch::linear(hidden, weight), -1),
            inputs.targets,
            {},
            at::Reduction::Sum);
      });
  EXPECT_LE(
      relative(fused.loss, oracle.loss), relative(torchs.loss, oracle.loss));
  EXPECT_LE(
      relative(fused.dhidden, oracle.dhidden),
      relative(torchs.dhidden, oracle.dhidden));
  EXPECT_LE(
      relative(fused.dweight, oracle.dweight),
      relative(torchs.dweight, oracle.dweight));
}

INSTANTIATE_TEST_SUITE_P(
    Logits,
    CrossEntropyAccuracy,
    ::testing::Values(KeepLogits::kAlways, KeepLogits::kNever),
    [](const auto& test) {
      return test.param == KeepLogits::kAlways ? "Kept" : "MadeAgain";
    });

// Tensors and the scratch memory of a thread that had none.
int64_t memory_of_a_pass(const Inputs& inputs, KeepLogits keep) {
  int64_t bytes = 0;
  std::thread([&] {
    const Tensor hidden = inputs.hidden.clone().requires_grad_(true);
    const Tensor weight = inputs.weight.clone().requires_grad_(true);
    weight.mutable_grad() = torch::zeros(weight.sizes());
    const testing::MemoryMeter meter;
    linear_cross_entropy(
        hidden,
        weight,
        inputs.targets,
        {.keep_logits = keep, .weight_grad = WeightGrad::kAccumulate})
        .backward();
    bytes = meter.peak_bytes() + static_cast<int64_t>(scratch_bytes());
  }).join();
  return bytes;
}

TEST(CrossEntropyMemory, NeverHoldsAllLogits) {
  constexpr int64_t kTokens = 2048;
  constexpr int64_t kVocabulary = 8192;
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const Inputs inputs = inputs_of({kTokens, 32, kVocabulary, dtype});
    const auto all =
        static_cast<int64_t>(kTokens * kVocabulary * c10::elementSize(dtype));
    for (const KeepLogits keep : {KeepLogits::kAlways, KeepLogits::kNever})
      EXPECT_LT(memory_of_a_pass(inputs, keep), all / 2) << dtype;
  }
}

// An exponential of a logit is kept down to 2^-31 of the maximum: below that
// lie all of a token but the first, and its target too. The gradient still
// pulls the target up with its whole factor.
TEST(CrossEntropyKept, LogitsFarBelowTheMaximumHaveNoWeight) {
  Inputs inputs = inputs_of({40, 32, 100, torch::kBFloat16});
  inputs.hidden.fill_(1);
  inputs.weight.fill_(-4);
  inputs.weight[70].fill_(4);  // logits of 128 and -128
  inputs.targets.fill_(3);
  const Results kept =
      results_of(inputs, torch::kBFloat16, [&](auto hidden, auto weight) {
        return linear_cross_entropy(
            hidden,
            weight,
            inputs.targets,
            {.keep_logits = KeepLogits::kAlways});
      });
  const Results oracle = oracle_of(inputs);
  EXPECT_LT(relative(kept.loss, oracle.loss), 1e-5);
  EXPECT_LT(relative(kept.dhidden, oracle.dhidden), 1e-5);
  EXPECT_LT(relative(kept.dweight, oracle.dweight), 1e-5);
}

TEST(CrossEntropy, ATransposedWeightGetsItsOwnGradient) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const Inputs inputs = inputs_of({40, 64, 96, dtype});
    const Results oracle = oracle_of(inputs);
    Inputs transposed = inputs;
    transposed.weight = inputs.weight.t().contiguous();  // [C, V]
    const Results fused =
        results_of(transposed, dtype, [&](auto hidden, auto weight) {
          return linear_cross_entropy(hidden, weight.t(), inputs.targets);
        });
    EXPECT_LT(relative(fused.dhidden, oracle.dhidden), 5e-3);
    EXPECT_LT(relative(fused.dweight.t(), oracle.dweight), 5e-3);
  }
}

TEST(CrossEntropy, APaddedVocabularyGetsNoProbability) {
  const Inputs inputs = inputs_of({20, 32, 50, torch::kBFloat16});
  const Tensor padded = torch::cat(
      {inputs.weight, torch::full({14, 32}, 3.0).to(torch::kBFloat16)});
  const Tensor& weight = padded.requires_grad_(true);
  const Tensor loss = linear_cross_entropy(
      inputs.hidden, weight, inputs.targets, {.valid_rows = 50});
  loss.backward();
  const Tensor oracle = reference::linear_cross_entropy(
      inputs.hidden, inputs.weight, inputs.targets);
  EXPECT_NEAR(loss.item<float>(), oracle.item<float>(), 1e-3);
  EXPECT_EQ(weight.grad().narrow(0, 50, 14).abs().sum().item<float>(), 0.0F);
}

// Two shards on one thread: each is run several times, first to learn its own
// maxima and sums, then with the group's handed in.
TEST(CrossEntropy, ShardsOfTheVocabularyGiveTheWholeLossAndGradient) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const Inputs inputs = inputs_of({50, 64, 130, dtype});
    const Results oracle = oracle_of(inputs);
    const std::vector<int64_t> begins{0, 70};
    const std::vector<int64_t> rows{70, 60};
    std::vector<Tensor> maxima;
    std::vector<Tensor> sums;
    const auto shard = [&](int64_t i, auto reduce_max, auto reduce_sum) {
      Inputs mine = inputs;
      mine.weight = inputs.weight.narrow(0, begins[i], rows[i]);
      CrossEntropyOptions options;
      options.vocab_begin = begins[i];
      options.vocab_size = 130;
      options.reduce_max = reduce_max;
      options.reduce_sum = reduce_sum;
      return results_of(mine, dtype, [&](auto hidden, auto weight) {
        return linear_cross_entropy(hidden, weight, inputs.targets, options);
      });
    };
    for (int64_t i = 0; i < 2; ++i)
      shard(
          i, [&](Tensor& m) { maxima.push_back(m.clone()); }, nullptr);
    const Tensor top = torch::maximum(maxima[0], maxima[1]);
    const auto set_top = [&](Tensor& m) { m.copy_(top); };
    for (int64_t i = 0; i < 2; ++i)
      shard(i, set_top, [&](Tensor& s) { sums.push_back(s.clone()); });
    const auto set_sums = [&](Tensor& s) { s.copy_(sums[0] + sums[1]); };
    const Results first = shard(0, set_top, set_sums);
    const Results second = shard(1, set_top, set_sums);
    EXPECT_LT(relative(first.loss, oracle.loss), 1e-5);
    EXPECT_LT(relative(first.dhidden + second.dhidden, oracle.dhidden), 5e-3);
    EXPECT_LT(
        relative(torch::cat({first.dweight, second.dweight}), oracle.dweight),
        5e-3);
  }
}

// Whether logits are kept is up to the processor; a group's may differ.
TEST(CrossEntropy, AGroupsReductionsDoNotDependOnWhetherLogitsAreKept) {
  const Inputs inputs = inputs_of({1500, 32, 64, torch::kBFloat16});
  for (const int64_t begin : {0, 32}) {
    for (const bool has_gradients : {true, false}) {
      const auto reductions = [&](KeepLogits keep) {
        std::vector<int64_t> numels;
        CrossEntropyOptions options;
        options.keep_logits = keep;
        options.vocab_begin = begin;
        options.vocab_size = 64;
        options.reduce_max = [&](Tensor& m) { numels.push_back(m.numel()); };
        options.reduce_sum = [&](Tensor& s) { numels.push_back(s.numel()); };
        const Tensor weight = inputs.weight.narrow(0, begin, 32).clone();
        linear_cross_entropy(
            inputs.hidden,
            weight.requires_grad_(has_gradients),
            inputs.targets,
            options);
        return numels;
      };
      const auto kept = reductions(KeepLogits::kAlways);
      EXPECT_EQ(kept, reductions(KeepLogits::kNever));
      EXPECT_EQ(kept, reductions(KeepLogits::kWhereQuicker));
      EXPECT_GE(kept.size(), 4U);
    }
  }
}

TEST(CrossEntropy, ATargetOutsideTheVocabularyIsNamed) {
  EXPECT_THAT(
      [&] {
        linear_cross_entropy(
            torch::ones({2, 4}),
            torch::ones({3, 4}),
            torch::tensor({1, 7}, torch::kLong));
      },
      ::testing::ThrowsMessage<DataError>(::testing::HasSubstr("row 1 is 7")));
}

TEST(CrossEntropy, AnUnexpectedIncomingGradientIsAnError) {
  const Tensor weight = torch::ones({3, 4}).requires_grad_(true);
  const Tensor loss = linear_cross_entropy(
      torch::ones({2, 4}),
      weight,
      torch::tensor({1, 2}, torch::kLong),
      {.known_gradient = 1.0});
  EXPECT_THROW((loss * 2).backward(), Error);
}

TEST(CrossEntropy, AWeightThatIsNotANumberMakesTheLossSo) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Inputs inputs = inputs_of({40, 64, 100, dtype});
    inputs.weight[70][3] = std::numeric_limits<float>::quiet_NaN();
    const Tensor loss =
        linear_cross_entropy(inputs.hidden, inputs.weight, inputs.targets);
    EXPECT_TRUE(loss.isnan().item<bool>()) << dtype;
  }
}

TEST(CrossEntropy, NoTokensHaveNoLoss) {
  const Tensor loss = linear_cross_entropy(
      torch::ones({0, 4}),
      torch::ones({3, 4}).requires_grad_(true),
      torch::empty({0}, torch::kLong));
  EXPECT_EQ(loss.item<float>(), 0.0F);
}

}  // namespace
}  // namespace brigade::ops
