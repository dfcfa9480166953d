#include "brigade/generate/sampling.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

namespace brigade {
namespace {

// Zero where the logit is less than the k-th largest.
void keep_top_k(
    const torch::Tensor& logits,
    int64_t k,
    torch::Tensor& probabilities) {
  const float* values = logits.data_ptr<float>();
  std::vector<float> ordered(values, values + logits.numel());
  const auto smallest = ordered.begin() + (k - 1);
  std::nth_element(ordered.begin(), smallest, ordered.end(), std::greater<>());
  probabilities.masked_fill_(logits < *smallest, 0);
  probabilities /= probabilities.sum();
}

// A token stays while those before it have not reached p; the likeliest always
// stays, also where p is 0 in the probabilities' dtype. Sorted are only those
// among which p is reached: the others are known by the upper halves of their
// bits, which have the order of the values.
void keep_top_p(torch::Tensor& probabilities, double p) {
  constexpr size_t kHalves = 1 << 16;
  auto* values = probabilities.data_ptr<float>();
  const auto count = static_cast<size_t>(probabilities.numel());
  const auto upper_half = [&](size_t i) {
    return std::bit_cast<uint32_t>(values[i]) >> 16;
  };
  std::vector<double> sums(kHalves, 0.0);
  for (size_t i = 0; i < count; ++i)
    sums[upper_half(i)] += values[i];
  double before = 0;
  size_t half = kHalves - 1;
  while (half > 0 && (sums[half] == 0 || before + sums[half] < p))
    before += sums[half--];
  std::vector<size_t> among;
  for (size_t i = 0; i < count; ++i) {
    if (upper_half(i) < half)
      values[i] = 0;
    else if (upper_half(i) == half)
      among.push_back(i);
  }
  std::sort(among.begin(), among.end(), [&](size_t a, size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  bool is_likeliest = before == 0;
  for (const size_t i : among) {
    const double value = values[i];
    if (before >= p && !is_likeliest)
      values[i] = 0;
    before += value;
    is_likeliest = false;
  }
}

}  // namespace

torch::Tensor next_token_probabilities(
    const torch::Tensor& logits,
    const SamplingOptions& options) {
  const int64_t vocabulary = logits.numel();
  if (options.temperature == 0) {
    auto certain = torch::zeros({vocabulary});
    certain[logits.argmax().item<int64_t>()] = 1;
    return certain;
  }
  const torch::Tensor scaled =
      (logits.cpu() / options.temperature).contiguous();
  torch::Tensor probabilities = scaled.softmax(0);
  if (options.top_k > 0 && options.top_k < vocabulary)
    keep_top_k(scaled, options.top_k, probabilities);
  if (options.top_p < 1)
    keep_top_p(probabilities, options.top_p);
  return probabilities / probabilities.sum();
}

int64_t draw_token(const torch::Tensor& probabilities, double uniform) {
  const auto* values = probabilities.data_ptr<float>();
  const int64_t count = probabilities.numel();
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += values[i];
  // Scaled, because the sum is 1 only up to rounding.
  const double target = uniform * sum;
  double reached = 0;
  int64_t token = 0;
  for (; token < count; ++token) {
    reached += values[token];
    if (reached > target)
      break;
  }
  return token;
}

}  // namespace brigade
