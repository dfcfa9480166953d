#include "brigade/train/stored_parts.h"

#include <algorithm>

namespace brigade {

TensorPart part_of(
    const std::string& prefix,
    const ParamState& state,
    const torch::Tensor& tensor) {
  const ParamShard& shard = state.shard;
  return {
      prefix + state.name,
      shard.dim == kNotCut ? -1 : shard.dim,
      shard.begin,
      shard.end,
      tensor};
}

TensorPart master_part_of(const std::string& prefix, const ParamState& state) {
  TensorPart part = part_of(prefix, state, state.weight);
  part.master_low = state.master_low();
  return part;
}

std::vector<TensorPart> optimizer_parts(const ParamState& state) {
  std::vector<TensorPart> parts;
  for (const ParamState::State& kept : state.states) {
    const std::string prefix = kept.name + ".";
    parts.push_back(
        kept.name == kMasterState ? master_part_of(prefix, state)
                                  : part_of(prefix, state, kept.tensor));
  }
  return parts;
}

bool is_stored_here(const ParamState& state) {
  return state.shard.is_first_replica && !state.is_copy_for_head;
}

Shares::Shares(const Communicator& replicas)
    : mine_(static_cast<size_t>(replicas.rank())),
      bytes_(static_cast<size_t>(replicas.size())) {}

bool Shares::take(const TensorPart& part) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  uint64_t size_bytes = without_padding(part, part.tensor).nbytes();
  if (part.master_low.defined())
    size_bytes *= 2;
  *least += size_bytes;
  return static_cast<size_t>(least - bytes_.begin()) == mine_;
}

}  // namespace brigade
