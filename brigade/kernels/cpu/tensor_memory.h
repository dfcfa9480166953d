// The memory of libtorch's CPU tensors.
#pragma once

namespace brigade::ops {

// Makes CPU tensors of memory that fits where an equal one was freed, and has
// freed memory kept (allocator.h). libtorch asks glibc for aligned memory,
// which glibc looks for in larger pieces than it leaves behind when that is
// freed: a step's tensors then lie in ever new places, and a rank holds 2 to 3
// % more. Called once by a program, before the first tensor.
void set_up_tensor_memory();

}  // namespace brigade::ops
