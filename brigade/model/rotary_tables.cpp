#include "brigade/model/rotary_tables.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace brigade {
namespace {

std::optional<ops::RotaryScaling> scaling_of(const RotaryDescription& rotary) {
  // With both bounds at infinity every frequency counts as low, and those are
  // divided by the factor.
  constexpr double kAll = std::numeric_limits<double>::infinity();
  if (rotary.linear_factor)
    return ops::RotaryScaling{*rotary.linear_factor, kAll, kAll, 1.0};
  if (!rotary.scaling)
    return std::nullopt;
  const Llama3RopeScaling& scaling = *rotary.scaling;
  return ops::RotaryScaling{
      scaling.factor,
      scaling.low_freq_factor,
      scaling.high_freq_factor,
      static_cast<double>(scaling.original_max_position_embeddings)};
}

}  // namespace

void RotaryTables::add_layer(const AttentionDescription& attention) {
  const Kind kind{attention.head_dim, attention.rotary};
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  kind_of_layer_.push_back(static_cast<size_t>(found - kinds_.begin()));
  if (found == kinds_.end())
    kinds_.push_back(kind);
}

void RotaryTables::set_positions(const torch::Tensor& positions) {
  // Comparing values on another device would wait for it.
  if (positions_.defined() &&
      (positions_.is_same(positions) ||
       (positions.is_cpu() && torch::equal(positions_, positions))))
    return;
  tables_.clear();
  for (const Kind& kind : kinds_) {
    tables_.push_back(ops::make_rotary_table(
        positions, kind.head_dim, kind.rotary.theta, scaling_of(kind.rotary)));
  }
  positions_ = positions;
}

}  // namespace brigade
