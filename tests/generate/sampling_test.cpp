// The tokens left to draw from, against transformers' warpers repeated in plain
// loops: temperature, TopKLogitsWarper, TopPLogitsWarper.
#include "brigade/generate/sampling.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace brigade {
namespace {

using Values = std::vector<double>;

Values softmax(const Values& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  Values result;
  for (const double logit : logits)
    result.push_back(std::exp(logit - top));
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& value : result)
    value /= sum;
  return result;
}

Values warped(Values logits, const SamplingOptions& options) {
  for (double& logit : logits)
    logit /= options.temperature;
  const auto k = static_cast<size_t>(options.top_k);
  if (k > 0 && k < logits.size()) {
    Values sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (double& logit : logits) {
      if (logit < sorted[k - 1])
        logit = -INFINITY;
    }
  }
  if (options.top_p < 1) {
    const Values probabilities = softmax(logits);
    std::vector<size_t> ascending(logits.size());
    std::iota(ascending.begin(), ascending.end(), size_t{0});
    std::stable_sort(
        ascending.begin(), ascending.end(), [&](size_t a, size_t b) {
          return logits[a] < logits[b];
        });
    double reached = 0;
    for (size_t i = 0; i + 1 < ascending.size(); ++i) {
      reached += probabilities[ascending[i]];
      if (reached <= 1 - options.top_p)
        logits[ascending[i]] = -INFINITY;
    }
  }
  return softmax(logits);
}

torch::Tensor tensor_of(const Values& values) {
  return torch::tensor(values).to(torch::kFloat);
}

TEST(Sampling, TopPCountsWhatTopKLeft) {
  const torch::Tensor logits =
      tensor_of({std::log(.5), std::log(.2), std::log(.16), std::log(.14)});
  const auto left = [&](int64_t top_k, double top_p) {
    return next_token_probabilities(logits, {.top_k = top_k, .top_p = top_p})
        .gt(0)
        .sum()
        .item<int64_t>();
  };
  EXPECT_EQ(left(2, 1), 2);
  EXPECT_EQ(left(0, 0.6), 2);
  EXPECT_EQ(left(2, 0.6), 1);  // 0.5 of 0.7 is more than 0.6
  EXPECT_EQ(left(3, 0.6), 2);
}

TEST(Sampling, TheLikeliestStaysForTheSmallestTopP) {
  const auto logits = tensor_of({1, 3, 2});
  // top_p is 0 in float32, and so are all sums before the first token.
  for (const double top_p : {1e-300, 1e-46}) {
    const auto left = next_token_probabilities(logits, {.top_p = top_p});
    EXPECT_TRUE(torch::equal(left, tensor_of({0, 1, 0}))) << top_p;
    EXPECT_EQ(draw_token(left, 0.999), 1);
  }
}

TEST(Sampling, TopKKeepsThoseAsLikelyAsTheLast) {
  const torch::Tensor kept =
      next_token_probabilities(tensor_of({1, 3, 2, 2, 2, 0}), {.top_k = 2});
  EXPECT_EQ(kept.gt(0).sum().item<int64_t>(), 4);
  EXPECT_EQ(kept[0].item<double>(), 0);
  EXPECT_EQ(kept[5].item<double>(), 0);
}

TEST(Sampling, IsThatOfTransformersWarpers) {
  torch::manual_seed(7);
  for (int round = 0; round < 50; ++round) {
    const torch::Tensor logits = 3 * torch::randn({23});
    const auto doubles = logits.to(torch::kDouble).contiguous();
    const Values values(
        doubles.data_ptr<double>(), doubles.data_ptr<double>() + 23);
    for (const int64_t top_k : {0, 1, 5, 22, 23, 100}) {
      for (const double top_p : {0.05, 0.3, 0.77, 0.95, 1.0}) {
        for (const double temperature : {0.5, 1.0, 1.7}) {
          const SamplingOptions options{
              .temperature = temperature, .top_k = top_k, .top_p = top_p};
          EXPECT_TRUE(torch::allclose(
              next_token_probabilities(logits, options),
              tensor_of(warped(values, options)),
              1e-5,
              1e-7))
              << top_k << " " << top_p << " " << temperature;
        }
      }
    }
  }
}

}  // namespace
}  // namespace brigade
