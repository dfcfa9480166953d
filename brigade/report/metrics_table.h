// One line per run: layout, batch, speed. As CSV with the columns of picotron's
// extract_metrics.py and more, and as a sortable page. avg_tokens_s_gpu and
// avg_mfu are whole numbers there, which picotron's reader expects.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "brigade/report/run_record.h"

namespace brigade {

struct RunSummary {
  std::string name;
  // end_of(), "completed", "running" (or killed), or "empty": without steps.
  std::string status;
  ParallelDims dims;
  std::string pp_engine;
  int64_t zero_stage = 0;
  int64_t micro_batch_size = 0;
  int64_t grad_acc = 0;
  int64_t seq_len = 0;
  int64_t steps = 0;
  // Means over the steps but the first three, which warm up (as picotron's).
  // NaN: there is none.
  double tokens_per_second_per_device =
      std::numeric_limits<double>::quiet_NaN();
  double mfu = std::numeric_limits<double>::quiet_NaN();  // percent
  // The last step's loss; NaN where it was not finite.
  double loss = std::numeric_limits<double>::quiet_NaN();
};

RunSummary summarize(const RunRecord& run);

// With a header line.
std::string to_csv(const std::vector<RunSummary>& runs);
// A page that opens offline; a click on a column's head sorts by it.
std::string to_html(const std::vector<RunSummary>& runs);
// A table for a terminal.
std::string to_text(const std::vector<RunSummary>& runs);

}  // namespace brigade
