// The results of a step: one JSON object per line in metrics.jsonl, and
// picotron's log line on stdout.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/files/line_file.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

// Where the reporting rank's step went. The parts add up to step_ms.
struct StepTimes {
  double data_ms = 0;     // loading the micro-batches
  double compute_ms = 0;  // forward and backward, and what overlaps them
  // Waits inside them for peers along an axis, by Axis; of pp: transfers and
  // bubble. Those of dp are gradients_ms.
  std::array<double, kNamedAxes.size()> axis_ms{};
  double gradients_ms = 0;  // waits after the last backward
  double norm_ms = 0;       // sum over ranks of loss and norm
  double optimizer_ms = 0;

  double& operator[](Axis axis) { return axis_ms[static_cast<size_t>(axis)]; }
  double operator[](Axis axis) const {
    return axis_ms[static_cast<size_t>(axis)];
  }
};

// The metrics of a loss of pairs (docs/preferences.md): means over pairs.
struct PreferenceMetrics {
  double chosen_reward = 0;
  double rejected_reward = 0;
  double accuracy = 0;  // share whose chosen answer has the larger reward
  double chosen_log_prob = 0;  // sums over an answer's tokens, nats
  double rejected_log_prob = 0;
  // By how much chosen answers are ahead.
  double margin() const { return chosen_reward - rejected_reward; }
};

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;  // mean over the step's tokens that count, or its pairs
  double lr = 0;
  double grad_norm = 0;  // before clipping
  int64_t tokens = 0;    // trained on so far
  double tokens_per_second = 0;
  double tokens_per_second_per_device = 0;
  double mfu = 0;        // percent
  double memory_gb = 0;  // resident, the most of one replica's ranks
  double step_ms = 0;
  // Waits for transfers between stages and for buckets alone; those inside
  // tensor and context parallel are in `times`.
  double exposed_comm_ms = 0;
  StepTimes times;
  std::optional<double> eval_loss;
  // The loss of each part of a mixture, by its path; with dataset.eval_parts.
  std::vector<std::pair<std::string, double>> part_eval_losses;
  // Those tokens of the step that count in the loss; unset: all.
  std::optional<int64_t> loss_tokens;
  // With a loss of pairs: of the step, and of held-out pairs.
  std::optional<PreferenceMetrics> preference;
  std::optional<PreferenceMetrics> eval_preference;
  // Steps so far that updated nothing, as their loss or a gradient was not
  // finite (training.on_non_finite = skip) or no token of theirs counts.
  int64_t skipped_steps = 0;
  // Each layer with experts; empty: there is none.
  std::vector<ExpertUse> experts;
  // What each stage of the reporting rank communicated; empty: not reported.
  std::vector<SyncReport> reports;
};

std::string to_json_line(
    const StepMetrics& metrics,
    ExpertRows rows = ExpertRows::kSay);

struct LogLineContext {
  int rank = 0;
  int64_t total_steps = 0;     // 0: not said
  std::string device = "GPU";  // what a rank computes on, as in Tokens/s/GPU
  int64_t global_batch_tokens = 0;
  std::optional<int64_t> max_tokens;
};

// picotron's line, with the run's steps, and with the device's true name:
// [rank 0] Step: 1/450   | Loss: 8.3193 | Global batch size:  4.096K | ...
std::string log_line(const StepMetrics& metrics, const LogLineContext& context);

// Whether the step has a line in the log: the first, the last, each that
// `log_frequency` divides, and those with an evaluation.
bool is_logged(
    const StepMetrics& metrics,
    int64_t log_frequency,
    int64_t total_steps);

// 4096 -> "4.096K", as picotron writes numbers.
std::string readable(double number);

// Resident memory of this process in GB (1e9 bytes).
double resident_memory_gb();

// Appends one line per step; the file is complete after each.
class MetricsFile {
 public:
  // Throws StorageError when it cannot be written.
  explicit MetricsFile(const std::filesystem::path& path) { file_.open(path); }
  // Throws StorageError; the line then waits for the next one.
  void write(const StepMetrics& metrics, ExpertRows rows = ExpertRows::kSay) {
    file_.append(to_json_line(metrics, rows));
  }

  // Leaves the lines of the steps up to `last_step` and drops a line that a
  // kill cut short: for a run that goes on after that step. Nothing to do where
  // there is no file. Throws DataError where it is not a regular file,
  // StorageError.
  static void cut_back(const std::filesystem::path& path, int64_t last_step);

 private:
  LineFile file_;
};

// The losses of the steps up to `last_step` in a metrics.jsonl, in its order;
// empty where there is none.
std::vector<double> read_losses(
    const std::filesystem::path& path,
    int64_t last_step);

}  // namespace brigade
