// Zeroed pages of a tensor's own, which go back to the system when it ends.
#pragma once

#include <cstddef>

namespace brigade::ops {

// `reserve` kNo: the pages count as taken once they are written, not before.
enum class ReservePages { kNo, kYes };

// Released with munmap(memory, bytes). Throws c10::Error where the system has
// no room. bytes > 0.
void* map_pages(size_t bytes, ReservePages reserve);

}  // namespace brigade::ops
