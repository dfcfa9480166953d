// A progress bar of bytes on a terminal, with their rate.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "brigade/metrics/progress_bar.h"

namespace brigade::cli {

// Another label begins another bar. Nothing is drawn off a terminal.
class ByteBar {
 public:
  // total_bytes 0: not known.
  void
  show(const std::string& label, uint64_t done_bytes, uint64_t total_bytes);
  void clear() { bar_ = nullptr; }

 private:
  std::string label_;
  std::unique_ptr<ProgressBar> bar_;
  uint64_t first_bytes_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace brigade::cli
