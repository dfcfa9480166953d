#include "cli/byte_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace brigade::cli {

void ByteBar::show(
    const std::string& label,
    uint64_t done_bytes,
    uint64_t total_bytes) {
  if (!bar_ || label != label_) {
    label_ = label;
    first_bytes_ = done_bytes;
    begin_ = std::chrono::steady_clock::now();
    bar_ = std::make_unique<ProgressBar>(
        label,
        static_cast<int64_t>(total_bytes),
        ::isatty(STDERR_FILENO) == 1 ? ProgressBar::Visible::kYes
                                     : ProgressBar::Visible::kNo);
  }
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - begin_;
  const auto mb = [](uint64_t bytes) {
    return static_cast<double>(bytes) / 1e6;
  };
  bar_->draw(
      static_cast<int64_t>(done_bytes),
      fmt::format(
          "{:.1f} of {:.1f} MB  {:.1f} MB/s",
          mb(done_bytes),
          mb(total_bytes),
          mb(done_bytes - first_bytes_) / std::max(1e-3, elapsed.count())));
}

}  // namespace brigade::cli
