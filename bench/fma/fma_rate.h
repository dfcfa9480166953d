// What a core's units for fused multiply-adds reach: the bound of every product
// in float32, of any library.
#pragma once

namespace brigade::bench {

// GFLOP/s of one thread, of float32 in the registers alone; the best of some.
double fma_gflops();

// Kernels and fma_gflops() on the instructions of BRIGADE_BENCH_TARGET, one of
// Highway's names, if the environment has it. Before any kernel runs. Throws
// ConfigError where the processor lacks it.
void restrict_target();

}  // namespace brigade::bench
