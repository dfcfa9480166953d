// The C allocator under libtorch's CPU tensors.
#pragma once

namespace brigade {

// Keeps freed memory for the next step instead of giving it back to the kernel.
// A training step frees and asks for the same sizes again and again; by default
// glibc maps a tensor above 128 KiB each time, and the kernel zeroes every page
// of it. Call it once, before the first tensor; does nothing where the C
// library is not glibc.
void keep_freed_memory();

// Gives freed memory back to the kernel once: after a run is set up, what it
// was set up with (initial weights in float32, what a checkpoint was read into)
// would otherwise stay resident beside the steps' own memory. Does nothing
// where the C library is not glibc.
void release_freed_memory();

}  // namespace brigade
