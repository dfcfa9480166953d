// The instruction sets that the kernels are compiled for, one binary for all;
// before any of Highway's headers. The steps left out lie between two that are
// kept and would gain nothing here.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2)
