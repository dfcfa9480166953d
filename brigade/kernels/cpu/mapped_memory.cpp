#include "brigade/kernels/cpu/mapped_memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace brigade::ops {

void* map_pages(size_t bytes, ReservePages reserve) {
  void* memory = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS |
          (reserve == ReservePages::kNo ? MAP_NORESERVE : 0),
      -1,
      0);
  TORCH_CHECK(
      memory != MAP_FAILED,
      "not enough memory for a tensor of ",
      bytes,
      " bytes: ",
      std::strerror(errno));
  return memory;
}

}  // namespace brigade::ops
