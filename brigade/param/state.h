// A tensor under a name, as in a state dict: a parameter or buffer of a module,
// or what is kept beside a parameter: an optimizer's moment, the low half of a
// master, outer momentum, what a compressed reduction or exchange between groups
// lost. In checkpoints of a run the latter are NAME.PARAMETER, but the low half
// as a part of the whole master.PARAMETER.
//
// Also what one rank writes into a checkpoint or reads from it: a slice of the
// tensor that is stored under that name.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "brigade/model_spec/shard.h"
#include "brigade/options/optimizer_states.h"

namespace brigade {

struct State {
  std::string name;
  torch::Tensor tensor;
  // Defined: `tensor` are codes of blocks, and these are their scales
  // (ops/block_codes.h).
  torch::Tensor scales = {};

  // ---- on its way into or out of a checkpoint

  // Defined: `tensor` (bf16) and this (int16) are the halves of a float32
  // master (ops/split_master.h), which is what the file has. In memory it is
  // whole only while it is read or written.
  torch::Tensor master_low = {};
  // Which part of the stored tensor it is; `tensor` may be longer along it
  // (padding, which is not stored).
  Slice slice = {};
};

// Zeros as `spec` says, of the weight's shape and beside it.
State zero_state(const StateSpec& spec, const torch::Tensor& weight);

// [begin, begin + numel) of a flat state: a view. Of codes whole blocks, but for
// the last one of a parameter.
State narrow_state(const State& flat, int64_t begin, int64_t numel);

// A state's values: itself, or of codes recodable_values().
torch::Tensor values_of(const State& state);
// Writes them, of the state's shape.
void set_values(const State& state, const torch::Tensor& values);
// Makes all values 0: of codes by their scales.
void zero(const State& state);
// The same bits: of two states of one spec.
void copy_state(const State& to, const State& from);

}  // namespace brigade
