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

// What an optimizer takes at a time.
enum class StepUnit {
  kElements,  // each by itself, in any run of memory
  kMatrices,  // whole matrices, wherever their elements lie
};

// Of a state's elements.
enum class StateDtype { kFloat32, kInt16 };

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

// Of weights.
enum class WeightWidth { k16Bit, k32Bit };

// The states of a parameter that the optimizer steps by `unit`: its own first,
// and for a 16-bit weight kMasterLow behind them.
std::vector<StateSpec> optimizer_states(
    const OptimizerOptions& options,
    StepUnit unit,
    WeightWidth weight);

// Bytes of one element of each.
int64_t element_bytes(const std::vector<StateSpec>& states);

}  // namespace brigade
