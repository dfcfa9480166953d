#include "brigade/model_spec/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace brigade {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

std::vector<double> plain(double theta, int64_t head_dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(
        theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  return frequencies;
}

// Wavelengths shorter than original / high_freq_factor are kept, longer than
// original / low_freq_factor divided by factor.
double llama3(double frequency, const RopeScaling& scaling) {
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) *
      frequency / kTurn;
  if (turns > scaling.high_freq_factor)
    return frequency;
  if (turns < scaling.low_freq_factor)
    return frequency / scaling.factor;
  const double smooth = (turns - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Theta grows with the part of the sequence beyond what was trained.
double dynamic_theta(
    double theta,
    double head_dim,
    double length,
    const RopeScaling& scaling) {
  const auto trained =
      static_cast<double>(scaling.original_max_position_embeddings);
  const double stretch = scaling.factor * std::max(length, trained) / trained -
                         (scaling.factor - 1);
  return theta * std::pow(stretch, head_dim / (head_dim - 2));
}

double yarn_magnitude(const RopeScaling& scaling) {
  if (scaling.attention_factor)
    return *scaling.attention_factor;
  const auto grown = [&](double scale) {
    return scaling.factor <= 1 ? 1.0
                               : 0.1 * scale * std::log(scaling.factor) + 1.0;
  };
  const double scale = scaling.mscale.value_or(0);
  const double all = scaling.mscale_all_dim.value_or(0);
  return scale != 0 && all != 0 ? grown(scale) / grown(all) : grown(1);
}

// Peng et al., "YaRN", 2023: dims that turn beta_fast times or more within what
// was trained are kept, those that turn beta_slow times or less are divided by
// factor, between them a linear blend.
void scale_by_yarn(
    std::vector<double>& frequencies,
    double theta,
    double head_dim,
    const RopeScaling& scaling) {
  const auto dim_that_turns = [&](double times) {
    const auto trained =
        static_cast<double>(scaling.original_max_position_embeddings);
    return head_dim * std::log(trained / (times * kTurn)) /
           (2 * std::log(theta));
  };
  double low = dim_that_turns(scaling.beta_fast);
  double high = dim_that_turns(scaling.beta_slow);
  if (scaling.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1);
  if (low == high)
    high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided =
        std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling.factor * divided +
                     frequencies[i] * (1 - divided);
  }
}

}  // namespace

bool depend_on_length(const RotaryDescription& rotary) {
  return rotary.scaling && rotary.scaling->type == RopeType::kDynamic;
}

RotaryFrequencies rotary_frequencies(
    const RotaryDescription& rotary,
    int64_t head_dim,
    int64_t length) {
  const auto rotated =
      static_cast<int64_t>(rotary.share * static_cast<double>(head_dim));
  RotaryFrequencies result{.values = plain(rotary.theta, rotated)};
  // Those that are not rotated turn by nothing.
  result.values.resize(static_cast<size_t>(head_dim / 2), 0.0);
  if (!rotary.scaling)
    return result;
  const RopeScaling& scaling = *rotary.scaling;
  const auto dim = static_cast<double>(head_dim);
  switch (scaling.type) {
    case RopeType::kLinear:
      for (double& frequency : result.values)
        frequency /= scaling.factor;
      break;
    case RopeType::kLlama3:
      for (double& frequency : result.values)
        frequency = llama3(frequency, scaling);
      break;
    case RopeType::kDynamic:
      result.values = plain(
          dynamic_theta(
              rotary.theta, dim, static_cast<double>(length), scaling),
          head_dim);
      break;
    case RopeType::kYarn:
      scale_by_yarn(result.values, rotary.theta, dim, scaling);
      result.magnitude = yarn_magnitude(scaling);
      break;
  }
  return result;
}

}  // namespace brigade
