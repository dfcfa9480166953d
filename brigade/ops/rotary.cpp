#include "brigade/ops/rotary.h"

#include <cmath>
#include <numbers>

#include "brigade/ops/describe.h"
#include "brigade/ops/plain.h"

namespace brigade::ops {
namespace {

// The llama3 rule: wavelengths shorter than original / high_freq_factor are
// kept, longer than original / low_freq_factor divided by factor.
double scaled_frequency(double frequency, const RotaryScaling& scaling) {
  const double turns = scaling.original_max_position_embeddings * frequency /
                       (2 * std::numbers::pi);
  if (turns > scaling.high_freq_factor)
    return frequency;
  if (turns < scaling.low_freq_factor)
    return frequency / scaling.factor;
  const double smooth = (turns - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

RotaryTable make_rotary_table(
    const Tensor& positions,
    int64_t head_dim,
    double theta,
    const std::optional<RotaryScaling>& scaling) {
  require(
      positions.dim() == 1 && positions.scalar_type() == torch::kLong,
      "rotary",
      "positions must be int64 [T], but are {}",
      describe(positions));
  require(
      head_dim > 0 && head_dim % 2 == 0,
      "rotary",
      "head_dim must be even, but is {}",
      head_dim);
  Tensor frequencies = torch::empty({head_dim / 2}, torch::kDouble);
  auto* values = frequencies.data_ptr<double>();
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    values[i] = std::pow(
        theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling)
      values[i] = scaled_frequency(values[i], *scaling);
  }
  const Tensor angles = positions.to(torch::kDouble).unsqueeze(1) *
                        frequencies.to(positions.device());
  return {
      torch::cos(angles).to(torch::kFloat),
      torch::sin(angles).to(torch::kFloat)};
}

std::pair<Tensor, Tensor>
rotary(const Tensor& q, const Tensor& k, const RotaryTable& table) {
  for (const Tensor& x : {q, k}) {
    require(
        x.dim() == 4 && x.size(1) == table.cos.size(0) &&
            x.size(3) == 2 * table.cos.size(1),
        "rotary",
        "q or k is {}, but the table's cos is {}: expected [B, {}, H, {}]",
        describe(x),
        describe(table.cos),
        table.cos.size(0),
        2 * table.cos.size(1));
  }
  return plain::rotary(q, k, table);
}

}  // namespace brigade::ops
