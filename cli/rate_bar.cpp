#include "cli/rate_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace brigade::cli {

ProgressBar::Visible visible_on_stderr() {
  return ::isatty(STDERR_FILENO) == 1 ? ProgressBar::Visible::kYes
                                      : ProgressBar::Visible::kNo;
}

ProgressBar::Visible visible_on_stderr(const LaunchEnvironment& environment) {
  return environment.is_terminal ? ProgressBar::Visible::kYes
                                 : visible_on_stderr();
}

void RateBar::show(
    const std::string& label,
    uint64_t done,
    uint64_t total,
    Unit unit) {
  if (!bar_ || label != label_) {
    label_ = label;
    first_ = done;
    begin_ = std::chrono::steady_clock::now();
    bar_ = std::make_unique<ProgressBar>(
        label, static_cast<int64_t>(total), visible_);
    bar_->set_columns(columns_);
  }
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - begin_;
  const auto millions = [](uint64_t count) {
    return static_cast<double>(count) / 1e6;
  };
  const double rate = millions(done - first_) / std::max(1e-3, elapsed.count());
  bar_->draw(
      static_cast<int64_t>(done),
      unit == Unit::kBytes ? fmt::format(
                                 "{:.1f} of {:.1f} MB  {:.1f} MB/s",
                                 millions(done),
                                 millions(total),
                                 rate)
                           : fmt::format(
                                 "{:.1f} of {:.1f} M tokens  {:.1f} M tokens/s",
                                 millions(done),
                                 millions(total),
                                 rate));
}

}  // namespace brigade::cli
