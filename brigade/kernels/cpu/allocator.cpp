#include "brigade/kernels/cpu/allocator.h"

#include <malloc.h>

namespace brigade {

void keep_freed_memory() {
#ifdef __GLIBC__
  // The largest threshold that glibc takes: tensors above it are still mapped.
  constexpr int kMapAboveBytes = 32 << 20;
  constexpr int kNeverTrim = -1;
  ::mallopt(M_MMAP_THRESHOLD, kMapAboveBytes);
  ::mallopt(M_TRIM_THRESHOLD, kNeverTrim);
  // The heaps of further threads would be mapped and unmapped all the same.
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

void release_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace brigade
