#include "brigade/ops/releasable_memory.h"

#include <sys/mman.h>

#include "brigade/base/check.h"
#include "brigade/kernels/cpu/mapped_memory.h"

namespace brigade::ops {
namespace {

struct Mapping {
  void* memory = nullptr;
  size_t bytes = 0;
};

void unmap(void* context) {
  auto* mapping = static_cast<Mapping*>(context);
  ::munmap(mapping->memory, mapping->bytes);
  delete mapping;
}

c10::DataPtr map_memory(size_t bytes, c10::Device device) {
  void* memory = map_pages(bytes, ReservePages::kYes);
  return {memory, new Mapping{memory, bytes}, &unmap, device};
}

size_t bytes_of(const torch::Tensor& flat) {
  return static_cast<size_t>(flat.numel()) * flat.element_size();
}

}  // namespace

torch::Tensor make_releasable(
    int64_t numel,
    const torch::TensorOptions& options) {
  // Made without elements, so that the storage is ours to fill.
  auto flat = torch::empty({0}, options);
  flat.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  restore(flat);
  return flat;
}

void release(const torch::Tensor& flat) {
  const c10::Storage& storage = flat.storage();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
  storage.set_nbytes(size_t{0});
}

void restore(const torch::Tensor& flat) {
  if (flat.numel() == 0 || !is_released(flat))
    return;
  const c10::Storage& storage = flat.storage();
  const size_t bytes = bytes_of(flat);
  storage.set_data_ptr_noswap(
      flat.is_cpu() ? map_memory(bytes, flat.device())
                    : storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

bool is_released(const torch::Tensor& flat) {
  return flat.storage().nbytes() == 0;
}

void move_memory(const torch::Tensor& from, const torch::Tensor& to) {
  BRIGADE_ASSERT(is_released(to) && bytes_of(from) == bytes_of(to));
  const c10::Storage& source = from.storage();
  const c10::Storage& target = to.storage();
  target.set_data_ptr_noswap(
      source.set_data_ptr(c10::DataPtr(nullptr, from.device())));
  target.set_nbytes(bytes_of(to));
  source.set_nbytes(size_t{0});
}

}  // namespace brigade::ops
