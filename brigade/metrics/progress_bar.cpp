#include "brigade/metrics/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

constexpr int64_t kWidth = 30;
constexpr int64_t kLeastIntervalNs = 100'000'000;

std::string time_text(int64_t seconds) {
  return seconds >= 3600 ? fmt::format(
                               "{}:{:02}:{:02}",
                               seconds / 3600,
                               seconds / 60 % 60,
                               seconds % 60)
                         : fmt::format("{}:{:02}", seconds / 60, seconds % 60);
}

}  // namespace

std::string progress_text(
    std::string_view label,
    const Progress& progress,
    std::string_view detail) {
  std::string text(label);
  const auto add = [&](const std::string& part, const char* space) {
    if (!part.empty())
      text += (text.empty() ? "" : space) + part;
  };
  if (progress.total <= 0) {
    add(std::string(detail), "  ");
    return text;
  }
  const double share = std::clamp(
      static_cast<double>(progress.done) / static_cast<double>(progress.total),
      0.0,
      1.0);
  const auto filled = static_cast<size_t>(share * kWidth);
  add(fmt::format(
          "[{}{}] {} %",
          std::string(filled, '='),
          std::string(kWidth - filled, ' '),
          static_cast<int>(share * 100)),
      " ");
  add(std::string(detail), "  ");
  std::string eta = "--:--";
  if (progress.measured > 0 && progress.measured_ns > 0) {
    const double rate = static_cast<double>(progress.measured) /
                        static_cast<double>(progress.measured_ns);
    const int64_t rest = std::max<int64_t>(0, progress.total - progress.done);
    eta =
        time_text(static_cast<int64_t>(static_cast<double>(rest) / rate / 1e9));
  }
  add("ETA " + eta, "  ");
  return text;
}

ProgressBar::ProgressBar(std::string label, int64_t total, Visible visible)
    : label_(std::move(label)),
      total_(total),
      is_visible_(visible == Visible::kYes) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::clear() {
  if (!is_drawn_)
    return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  is_drawn_ = false;
}

void ProgressBar::draw(int64_t done, std::string_view detail) {
  if (!is_visible_)
    return;
  const int64_t now_ns = steady_now_ns();
  if (first_ < 0) {
    first_ = done;
    first_ns_ = now_ns;
  } else if (
      is_drawn_ && now_ns - last_ns_ < kLeastIntervalNs &&
      (total_ == 0 || done < total_)) {
    return;
  }
  last_ns_ = now_ns;
  const Progress progress{
      .done = done,
      .total = total_,
      .measured = done - first_,
      .measured_ns = now_ns - first_ns_};
  fmt::print(stderr, "\r\033[K{}", progress_text(label_, progress, detail));
  std::fflush(stderr);
  is_drawn_ = true;
}

}  // namespace brigade
