#include "brigade/checkpoint/tensor_part.h"

#include "brigade/comm/device_stream.h"
#include "brigade/param/param.h"

namespace brigade {

torch::Tensor without_padding(
    const TensorPart& part,
    const torch::Tensor& tensor) {
  return take_slice(tensor.detach(), {part.slice.dim, 0, part.slice.length()});
}

std::vector<TensorPart> PartSnapshot::copy(
    const std::vector<TensorPart>& parts) {
  const torch::NoGradGuard no_grad;
  next_ = 0;
  std::vector<TensorPart> copies = parts;
  for (TensorPart& part : copies) {
    part.tensor = copy_tensor(part, part.tensor);
    if (part.master_low.defined())
      part.master_low = copy_tensor(part, part.master_low);
  }
  if (!parts.empty())
    StreamMark::of_current_stream(parts.front().tensor.device()).wait_on_host();
  return copies;
}

torch::Tensor PartSnapshot::copy_tensor(
    const TensorPart& part,
    const torch::Tensor& from) {
  const torch::Tensor source = without_padding(part, from);
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
