// The rotary tables of a part's layers: one for each kind of rotary embedding
// among them, made again when the positions change.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/model_spec/model_description.h"
#include "brigade/ops/rotary.h"

namespace brigade {

class RotaryTables {
 public:
  // One call per layer, in order.
  void add_layer(const AttentionDescription& attention);

  // positions: int64 [T], the place in the sequence of each local token.
  void set_positions(const torch::Tensor& positions);
  // Those of the layer added as number `layer`; [T, D/2] each.
  const ops::RotaryTable& of_layer(size_t layer) const {
    return tables_[kind_of_layer_[layer]];
  }

 private:
  struct Kind {
    int64_t head_dim;
    RotaryDescription rotary;
    bool operator==(const Kind&) const = default;
  };
  std::vector<Kind> kinds_;
  std::vector<size_t> kind_of_layer_;
  // Positions are the same from step to step.
  torch::Tensor positions_;
  std::vector<ops::RotaryTable> tables_;  // by kind
};

}  // namespace brigade
