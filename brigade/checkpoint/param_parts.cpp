#include "brigade/checkpoint/param_parts.h"

#include <algorithm>

namespace brigade {

State part_of(
    const std::string& prefix,
    const Param& param,
    const torch::Tensor& tensor) {
  return {
      .name = prefix + param.name, .tensor = tensor, .slice = param.cut.slice};
}

State part_of(
    const std::string& prefix,
    const Param& param,
    const State& state) {
  State part = part_of(prefix, param, state.tensor);
  part.scales = state.scales;
  return part;
}

State master_part_of(const std::string& prefix, const Param& param) {
  State part = part_of(prefix, param, param.tensor);
  part.master_low = param.state(kMasterLow);
  return part;
}

std::vector<State> optimizer_parts(const Param& param) {
  std::vector<State> parts;
  for (const State& kept : param.states) {
    parts.push_back(
        kept.name == kMasterLow ? master_part_of("master.", param)
                                : part_of(kept.name + ".", param, kept));
  }
  return parts;
}

Shares::Shares(const Communicator& replicas)
    : mine_(static_cast<size_t>(replicas.rank())),
      bytes_(static_cast<size_t>(replicas.size())) {}

bool Shares::take(const State& part) {
  const auto least = std::min_element(bytes_.begin(), bytes_.end());
  uint64_t size_bytes = without_padding(part, part.tensor).nbytes();
  if (part.master_low.defined())
    size_bytes *= 2;
  *least += size_bytes;
  return static_cast<size_t>(least - bytes_.begin()) == mine_;
}

}  // namespace brigade
