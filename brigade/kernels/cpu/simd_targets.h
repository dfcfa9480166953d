// The instruction sets that the kernels are compiled for, one binary for all;
// before any of Highway's headers. The steps of x86 left out lie between two
// that are kept and would gain nothing here. On Arm it is NEON alone: the
// vectors of SVE have no size at compile time (those of Highway's SVE_256 and
// SVE2_128 neither, to the compiler), and kernels here keep sums in arrays.
#pragma once

#define HWY_DISABLED_TARGETS                                               \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | \
   HWY_SVE2_128)
