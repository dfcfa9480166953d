// What optimizers keep of a parameter, said once: the optimizers make these
// tensors, and dry run, checkpoints' sizes and planner count them.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/options/optimizer.h"

namespace brigade {

// The dtype of a state's elements.
enum class StateDtype {
  kFloat32,
  kBfloat16,
  kInt16,
  kSignedCodes,    // with a float32 scale per block: ops/block_codes.h
  kUnsignedCodes,  // the same for values that are never negative
};

// Elements of a block of codes. Blocks count from a parameter's first element
// on this rank, and no range that a rank owns cuts one (GradSyncOptions::
// block_numel).
inline constexpr int64_t kBlockNumel = 256;

// How many blocks so many elements are.
inline constexpr int64_t count_blocks(int64_t numel) {
  return (numel + kBlockNumel - 1) / kBlockNumel;
}

// A tensor that is kept beside a weight, as long as the weight. Checkpoints
// store it as NAME.PARAMETER, all but kMasterLow.
struct StateSpec {
  std::string name;
  StateDtype dtype = StateDtype::kFloat32;
  bool operator==(const StateSpec&) const = default;
};

// What a bf16 weight lacks of its float32 master: int16, ops/split_master.h. It
// belongs to every optimizer; a float32 weight is its own master and has none.
// Checkpoints of a run hold the whole master instead, as "master".
inline constexpr const char* kMasterLow = "master_low";

// The moving average of the weights, where one is kept.
inline constexpr const char* kEma = "ema";

// The width of weights.
enum class WeightWidth { k16Bit, k32Bit };

// The states of a parameter that the optimizer steps by `unit`: its own first,
// and for a 16-bit weight kMasterLow behind them.
std::vector<StateSpec> optimizer_states(
    const OptimizerOptions& options,
    StepUnit unit,
    WeightWidth weight);

// Why the optimizer's moments cannot be kept in that dtype, and what to do; "":
// they can.
std::string why_not_kept_in(MomentDtype dtype, const OptimizerOptions& options);

// Elements of the blocks that its states come in; 1: none.
int64_t state_block_numel(const OptimizerOptions& options);

// Bytes of one element of each, a block's scale shared out among its elements.
double element_bytes(const std::vector<StateSpec>& states);

}  // namespace brigade
