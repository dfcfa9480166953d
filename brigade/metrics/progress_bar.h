// A progress bar on a terminal, redrawn in place on stderr:
//   tokenizing [=========                     ] 30 %  12.0 MB/s  ETA 1:23
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

// How far some work has come, in any unit.
struct Progress {
  int64_t done = 0;
  int64_t total = 0;  // 0: not known; then neither bar nor ETA is drawn
  // What was done in which time, for the ETA; 0 ns: not known yet.
  int64_t measured = 0;
  int64_t measured_ns = 0;
};

// Whether colour may be shown on a terminal: not where NO_COLOR is set to
// anything (no-color.org), nor on one that says "dumb".
bool allows_colour(
    const std::optional<std::string>& no_color,
    const std::optional<std::string>& term);

// One line without its end. `label` and `detail` may be empty; `detail` may
// hold colours (ESC [ ... m). Fits into `columns`: first the bar gives way,
// then what stands at the end. 0: any length.
std::string progress_text(
    std::string_view label,
    const Progress& progress,
    std::string_view detail,
    int64_t columns = 0);

// Draws at most ten times per second, and always at the end. One thread.
class ProgressBar {
 public:
  // Whether a person watches stderr; nothing is drawn otherwise.
  enum class Visible { kNo, kYes };
  ProgressBar(std::string label, int64_t total, Visible visible);
  // Clears the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // The terminal's columns, where stderr is a pipe to one. 0: as stderr says.
  void set_columns(int64_t columns) { columns_ = columns; }
  // The ETA counts from the first call. `detail` stands behind the bar.
  void draw(int64_t done, std::string_view detail);
  // Clears the bar, so that a line can be printed where it stood.
  void clear();

 private:
  std::string label_;
  int64_t total_;
  bool is_visible_;
  bool is_drawn_ = false;
  int64_t columns_ = 0;
  int64_t first_ = -1;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace brigade
