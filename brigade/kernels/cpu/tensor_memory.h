// The memory of libtorch's CPU tensors.
#pragma once

namespace brigade::ops {

// Makes CPU tensors of memory that fits where an equal one was freed, and has
// freed memory kept for the next step. libtorch asks glibc for aligned memory,
// which glibc looks for in larger pieces than it leaves behind when that is
// freed: a step's tensors then lie in ever new places, and a rank holds 2 to 3
// % more. And a training step frees and asks for the same sizes again and
// again, where by default glibc maps a tensor above 128 KiB each time, and the
// kernel zeroes every page of it. Called once by a program, before the first
// tensor.
void set_up_tensor_memory();

// Gives freed memory back to the kernel once: after a run is set up, what it
// was set up with (initial weights in float32, what a checkpoint was read into)
// would otherwise stay resident beside the steps' own memory. Does nothing
// where the C library is not glibc.
void release_freed_memory();

}  // namespace brigade::ops
