#include "brigade/generate/sampling.h"

#include <algorithm>

namespace brigade {

torch::Tensor next_token_probabilities(
    const torch::Tensor& logits,
    const SamplingOptions& options) {
  const int64_t vocabulary = logits.numel();
  if (options.temperature == 0) {
    auto certain = torch::zeros({vocabulary});
    certain[logits.argmax().item<int64_t>()] = 1;
    return certain;
  }
  auto [sorted, order] = (logits / options.temperature).sort(0, true);
  auto probabilities = sorted.softmax(0);
  if (options.top_k > 0 && options.top_k < vocabulary) {
    const torch::Tensor smallest = sorted[options.top_k - 1];
    probabilities.masked_fill_(sorted < smallest, 0);
    probabilities /= probabilities.sum();
  }
  if (options.top_p < 1) {
    // A token stays while those before it have not reached p; the likeliest
    // always stays, also where p is 0 in the probabilities' dtype.
    const auto before = probabilities.cumsum(0) - probabilities;
    probabilities.slice(0, 1).masked_fill_(
        before.slice(0, 1) >= options.top_p, 0);
  }
  probabilities /= probabilities.sum();
  return torch::zeros({vocabulary}).scatter(0, order, probabilities);
}

int64_t draw_token(const torch::Tensor& probabilities, double uniform) {
  const auto reached = probabilities.to(torch::kDouble).cumsum(0);
  const double* values = reached.data_ptr<double>();
  const int64_t count = reached.numel();
  // Scaled, because the sum is 1 only up to rounding.
  const double target = uniform * values[count - 1];
  return std::upper_bound(values, values + count, target) - values;
}

}  // namespace brigade
