// A progress bar on a terminal, with how fast the work goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "brigade/launch/environment.h"
#include "brigade/metrics/progress_bar.h"

namespace brigade::cli {

// Whether a person watches stderr: this process's own, or, in a rank that a
// supervisor started, the supervisor's.
ProgressBar::Visible visible_on_stderr();
ProgressBar::Visible visible_on_stderr(const LaunchEnvironment& environment);

// Another label begins another bar.
class RateBar {
 public:
  enum class Unit { kBytes, kTokens };
  explicit RateBar(ProgressBar::Visible visible = visible_on_stderr())
      : visible_(visible) {}
  // As in ProgressBar.
  void set_columns(int64_t columns) { columns_ = columns; }

  // `total` 0: not known.
  void show(
      const std::string& label,
      uint64_t done,
      uint64_t total,
      Unit unit = Unit::kBytes);
  // A callback for functions that report how many of how many bytes are done.
  auto labelled(std::string label) {
    return [this, label = std::move(label)](uint64_t done, uint64_t total) {
      show(label, done, total);
    };
  }
  void clear() { bar_ = nullptr; }

 private:
  ProgressBar::Visible visible_;
  int64_t columns_ = 0;
  std::string label_;
  std::unique_ptr<ProgressBar> bar_;
  uint64_t first_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace brigade::cli
