// A tensor under a name, as in a state dict: a parameter or buffer of a module,
// or a state of a parameter: an optimizer's moment, the low half of a master,
// outer momentum, the errors of a compressed reduction or exchange between
// groups. In checkpoints of a run states are NAME.PARAMETER, except the low
// half, which is a part of the whole master.PARAMETER.
//
// Also what one rank writes into a checkpoint or reads from it: a slice of the
// tensor that is stored under that name.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/model_spec/shard.h"
#include "brigade/options/optimizer_states.h"

namespace brigade {

struct State {
  std::string name;
  torch::Tensor tensor;
  // If defined, `tensor` holds codes of blocks, and these are their scales
  // (ops/block_codes.h).
  torch::Tensor scales = {};

  // ---- on its way into or out of a checkpoint

  // If defined, `tensor` (bf16) and this (int16) are the halves of a float32
  // master (ops/split_master.h), which the file holds. In memory it is whole
  // only while it is read or written.
  torch::Tensor master_low = {};
  // The part of the stored tensor that this is; `tensor` may be longer along it
  // (padding, which is not stored).
  Slice slice = {};
};

// Zeros as `spec` says, of the weight's shape and on its device; contiguous.
State zero_state(const StateSpec& spec, const torch::Tensor& weight);
// The same with the name, dtype and device of `like`.
State zero_state(const State& like, torch::IntArrayRef shape);

// [begin, begin + numel) of a flat state: a view. Of codes only whole blocks
// can be taken, except a parameter's last one.
State narrow_state(const State& flat, int64_t begin, int64_t numel);

// A state's values: the tensor itself, or recodable_values() of codes.
torch::Tensor values_of(const State& state);
// Writes them, of the state's shape.
void set_values(const State& state, const torch::Tensor& values);
// Makes all values 0; those of codes by their scales.
void zero(const State& state);
// Copies the bits between two states of one spec.
void copy_state(const State& to, const State& from);

// The tensor of the state of this name; undefined if there is none.
torch::Tensor find_state(
    const std::vector<State>& states,
    std::string_view name);

}  // namespace brigade
