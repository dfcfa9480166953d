#include "brigade/metrics/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

constexpr int64_t kWidth = 30;
constexpr int64_t kLeastWidth = 5;
constexpr int64_t kLeastIntervalNs = 100'000'000;

std::string time_text(int64_t seconds) {
  return seconds >= 3600 ? fmt::format(
                               "{}:{:02}:{:02}",
                               seconds / 3600,
                               seconds / 60 % 60,
                               seconds % 60)
                         : fmt::format("{}:{:02}", seconds / 60, seconds % 60);
}

// The columns that a text takes on a terminal: its characters without colours.
int64_t shown_columns(std::string_view text) {
  int64_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033')
      i = std::min(text.find('m', i), text.size() - 1);
    else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      ++columns;
  }
  return columns;
}

// The text's first columns, and every colour of all of it.
std::string cut_to(std::string_view text, int64_t columns) {
  std::string kept;
  int64_t used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      const size_t end = std::min(text.find('m', i), text.size() - 1);
      kept += text.substr(i, end + 1 - i);
      i = end;
      continue;
    }
    used += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 ? 1 : 0;
    if (used <= columns)
      kept += text[i];
  }
  return kept;
}

std::string line_with_bar(
    std::string_view label,
    const Progress& progress,
    std::string_view detail,
    int64_t width) {
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
  const auto filled = static_cast<size_t>(share * static_cast<double>(width));
  // A bar of a few columns would show nothing.
  if (width >= kLeastWidth)
    add(fmt::format(
            "[{}{}]",
            std::string(filled, '='),
            std::string(static_cast<size_t>(width) - filled, ' ')),
        " ");
  add(fmt::format("{} %", static_cast<int>(share * 100)), " ");
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

}  // namespace

bool allows_colour(
    const std::optional<std::string>& no_color,
    const std::optional<std::string>& term) {
  return no_color.value_or("").empty() && term.value_or("") != "dumb";
}

std::string progress_text(
    std::string_view label,
    const Progress& progress,
    std::string_view detail,
    int64_t columns) {
  if (columns <= 0)
    return line_with_bar(label, progress, detail, kWidth);
  std::string text = line_with_bar(label, progress, detail, kWidth);
  const int64_t excess = shown_columns(text) - columns;
  if (excess <= 0)
    return text;
  text = line_with_bar(
      label, progress, detail, std::max<int64_t>(0, kWidth - excess));
  return cut_to(text, columns);
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
  winsize size{};
  int64_t columns = columns_;
  if (columns == 0 && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0)
    columns = size.ws_col;
  // The last column stays free: some terminals go to the next line after it.
  columns = std::max<int64_t>(0, columns - 1);
  // Unlike fmt::print(), it does not throw where nobody can read.
  std::fputs(
      ("\r\033[K" + progress_text(label_, progress, detail, columns)).c_str(),
      stderr);
  std::fflush(stderr);
  is_drawn_ = true;
}

}  // namespace brigade
