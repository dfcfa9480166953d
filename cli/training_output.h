// What `brigade train` prints: a line per step in picotron's format on stdout,
// a progress bar on a terminal, and where the run's files are at the end.
#pragma once

#include <memory>

#include "brigade/metrics/progress_bar.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/run_observer.h"
#include "cli/rate_bar.h"

namespace brigade::cli {

class TrainingOutput : public RunObserver {
 public:
  enum class Colour { kNo, kYes };
  // `visible`: the progress bars.
  explicit TrainingOutput(
      ProgressBar::Visible visible,
      Colour colour = Colour::kNo)
      : visible_(visible), colour_(colour), preparation_(visible) {}
  // The terminal's columns, where stderr is a pipe to it; 0: as stderr says.
  void set_columns(int64_t columns) {
    columns_ = columns;
    preparation_.set_columns(columns);
  }

  void on_start(const RunStart& start) override;
  void on_step(const StepMetrics& metrics) override;
  void on_checkpoint(const std::filesystem::path& path) override;
  void on_message(const std::string& line) override;
  void on_progress(const RunProgress& progress) override;
  void on_end(const RunEnd& end) override;

 private:
  void print_files(const RunEnd& end) const;

  // To the right of the bar.
  std::string bar_text(const StepMetrics& metrics) const;

  void clear_bars();

  ProgressBar::Visible visible_;
  Colour colour_;
  int64_t columns_ = 0;
  RateBar preparation_;               // before the first step
  std::unique_ptr<ProgressBar> bar_;  // of the steps
  LogLineContext line_;
  RunFolder folder_;
  int64_t total_steps_ = 0;
  bool continues_ = false;  // a checkpoint
  int64_t log_frequency_ = 1;
  bool traces_ = false;  // logging.trace_steps is given
  StepMetrics last_;
};

}  // namespace brigade::cli
