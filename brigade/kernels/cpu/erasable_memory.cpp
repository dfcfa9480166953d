#include "brigade/ops/erasable_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "brigade/base/check.h"
#include "brigade/kernels/cpu/mapped_memory.h"

namespace brigade::ops {
namespace {

uintptr_t round_up(uintptr_t value, uintptr_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

torch::Tensor make_erasable(
    int64_t numel,
    const torch::TensorOptions& options) {
  if (!options.device().is_cpu() || numel == 0)
    return torch::zeros({numel}, options);
  const auto bytes =
      static_cast<size_t>(numel) *
      c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  return torch::from_blob(
      map_pages(bytes, ReservePages::kNo),
      {numel},
      [bytes](void* data) { ::munmap(data, bytes); },
      options);
}

void erase(const torch::Tensor& range) {
  const torch::NoGradGuard no_grad;
  if (!range.device().is_cpu()) {
    range.detach().zero_();
    return;
  }
  BRIGADE_ASSERT(range.is_contiguous());
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(range.data_ptr());
  const auto end = begin + range.nbytes();
  const uintptr_t first = round_up(begin, page);
  const uintptr_t last = end / page * page;
  const auto clear = [](uintptr_t from, uintptr_t to) {
    std::memset(reinterpret_cast<void*>(from), 0, to - from);
  };
  if (first >= last) {
    clear(begin, end);
    return;
  }
  clear(begin, first);
  clear(last, end);
  if (::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) !=
      0)
    clear(first, last);
}

}  // namespace brigade::ops
