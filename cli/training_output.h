// What `brigade train` prints: a line per step in picotron's format on stdout,
// a progress bar on a terminal, and where the run's files are at the end.
#pragma once

#include <memory>

#include "brigade/metrics/progress_bar.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/train/run_observer.h"

namespace brigade::cli {

class TrainingOutput : public RunObserver {
 public:
  // Whether a person watches stderr, and so wants a progress bar.
  enum class Terminal { kNo, kYes };
  enum class Colour { kNo, kYes };
  explicit TrainingOutput(Terminal terminal, Colour colour = Colour::kNo)
      : terminal_(terminal), colour_(colour) {}
  // Of the terminal, where stderr is a pipe to it; 0: as stderr says.
  void set_columns(int64_t columns) { columns_ = columns; }

  void on_start(const RunStart& start) override;
  void on_step(const StepMetrics& metrics) override;
  void on_checkpoint(const std::filesystem::path& path) override;
  void on_message(const std::string& line) override;
  void on_end(const RunEnd& end) override;

 private:
  void print_files(const RunEnd& end) const;

  // What stands behind the bar.
  std::string bar_text(const StepMetrics& metrics) const;

  Terminal terminal_;
  Colour colour_;
  int64_t columns_ = 0;
  std::unique_ptr<ProgressBar> bar_;
  LogLineContext line_;
  RunFolder folder_;
  int64_t total_steps_ = 0;
  bool continues_ = false;  // a checkpoint
  int64_t log_frequency_ = 1;
  bool traces_ = false;  // logging.trace_steps is given
  StepMetrics last_;
};

}  // namespace brigade::cli
