// The shapes that the benchmarks of ops and of the step agree on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "brigade/base/median.h"

namespace brigade::bench {

struct ModelShape {
  const char* name;
  int64_t hidden, layers, heads, key_heads, ffn, vocabulary;
  bool tied;
  int64_t sequence, micro_batch, accumulation;
  int64_t head_dim() const { return hidden / heads; }
  int64_t tokens() const { return sequence * micro_batch; }
  int64_t qkv_width() const { return (heads + 2 * key_heads) * head_dim(); }
};

inline const ModelShape kShapes[] = {
    {"stories15m", 288, 6, 6, 6, 768, 32000, false, 256, 4, 2},
    {"stories15m_4k", 288, 6, 6, 6, 768, 32000, false, 4096, 1, 1},
    {"smollm_135m", 576, 30, 9, 3, 1536, 49152, true, 512, 2, 1},
};

// Milliseconds of the median of `runs` calls, after one to warm up.
inline double median_ms(int runs, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - begin;
    times.push_back(passed.count());
  }
  return median(std::move(times));
}

}  // namespace brigade::bench
