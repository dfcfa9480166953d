#include "brigade/checkpoint/tensor_part.h"

#include "brigade/comm/device_stream.h"
#include "brigade/ops/block_codes.h"
#include "brigade/param/param.h"

namespace brigade {

torch::Tensor without_padding(const State& part, const torch::Tensor& tensor) {
  return take_slice(tensor.detach(), {part.slice.dim, 0, part.slice.length()});
}

// Padding is rows behind all others.
torch::Tensor stored_scales(const State& part) {
  return part.scales.narrow(
      0, 0, count_blocks(without_padding(part, part.tensor).numel()));
}

std::vector<State> PartSnapshot::copy(const std::vector<State>& parts) {
  const torch::NoGradGuard no_grad;
  next_ = 0;
  std::vector<State> copies = parts;
  for (State& part : copies) {
    if (part.scales.defined())
      part.scales = copy_tensor(stored_scales(part));
    part.tensor = copy_tensor(without_padding(part, part.tensor));
    if (part.master_low.defined())
      part.master_low = copy_tensor(without_padding(part, part.master_low));
  }
  if (!parts.empty())
    StreamMark::of_current_stream(parts.front().tensor.device()).wait_on_host();
  return copies;
}

torch::Tensor PartSnapshot::copy_tensor(const torch::Tensor& source) {
  if (next_ == memory_.size())
    memory_.emplace_back();
  torch::Tensor& memory = memory_[next_++];
  const bool fits = memory.defined() && memory.sizes() == source.sizes() &&
                    memory.scalar_type() == source.scalar_type();
  if (!fits) {
    memory = torch::empty(
        source.sizes(),
        torch::dtype(source.scalar_type()).pinned_memory(source.is_cuda()));
  }
  memory.copy_(source, /*non_blocking=*/true);
  return memory;
}

}  // namespace brigade
