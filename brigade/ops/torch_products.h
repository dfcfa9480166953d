// libtorch's own bf16 products on the CPU.
#pragma once

namespace brigade::ops {

// Has libtorch multiply bf16 by itself, in the whole process, where its oneDNN
// cannot. Its version 1.13 hands products to oneDNN where the processor has
// instructions for bf16; a oneDNN without a kernel for them (Debian's on Arm;
// any under DNNL_MAX_CPU_ISA=AVX2) then throws. Multiplies a small matrix to
// find out, when it is first called. Any thread may call it.
void ensure_torch_multiplies_bf16();

}  // namespace brigade::ops
