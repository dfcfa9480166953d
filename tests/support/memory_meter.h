// Counts the bytes of CPU tensors that a thread allocates and frees.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace brigade::testing {

class MemoryMeter {
 public:
  int64_t live_bytes() const { return count_->live; }
  int64_t peak_bytes() const { return count_->peak; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    bool memoryProfilingEnabled() const override { return true; }
    // libtorch 1.13 and 2.x differ in the totals' type; each overrides one of
    // these, so neither says `override`.
    // NOLINTBEGIN(modernize-use-override)
    void
    reportMemoryUsage(void*, int64_t bytes, int64_t, int64_t, c10::Device) {
      add(bytes);
    }
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) {
      add(bytes);
    }
    // NOLINTEND(modernize-use-override)
    void add(int64_t bytes) {
      live += bytes;
      peak = std::max(peak, live);
    }
    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

}  // namespace brigade::testing
