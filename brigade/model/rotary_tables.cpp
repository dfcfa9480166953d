#include "brigade/model/rotary_tables.h"

#include <algorithm>

#include "brigade/model_spec/rotary_frequencies.h"

namespace brigade {
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
    const int64_t length =
        depend_on_length(kind.rotary) ? positions.max().item<int64_t>() + 1 : 0;
    const RotaryFrequencies frequencies =
        rotary_frequencies(kind.rotary, kind.head_dim, length);
    tables_.push_back(ops::make_rotary_table(
        positions, frequencies.values, frequencies.magnitude));
  }
  positions_ = positions;
}

}  // namespace brigade
