#include "brigade/report/metrics_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "brigade/report/html.h"

namespace brigade {
namespace {

constexpr size_t kWarmupSteps = 3;

// The mean over the steps that have the value, without those that warm up; NaN:
// none has it.
double mean_of(const std::vector<nlohmann::json>& steps, const char* key) {
  const size_t first = steps.size() > kWarmupSteps ? kWarmupSteps : 0;
  double sum = 0;
  int64_t count = 0;
  for (size_t i = first; i < steps.size(); ++i) {
    const double value = step_value(steps[i], key);
    if (std::isnan(value))
      continue;
    sum += value;
    ++count;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN()
                    : sum / static_cast<double>(count);
}

// As extract_metrics.py writes a mean: rounded, -1 where there is none.
std::string rounded(double mean) {
  return std::isnan(mean) ? "-1" : fmt::format("{:.0f}", mean);
}

struct Column {
  const char* name;
  std::function<std::string(const RunSummary&)> text;
};

std::vector<Column> make_columns() {
  const auto number = [](int64_t RunSummary::*member) {
    return [member](const RunSummary& run) {
      return fmt::format("{}", run.*member);
    };
  };
  std::vector<Column> all = {
      {"run_name", [](const RunSummary& run) { return run.name; }},
      {"status", [](const RunSummary& run) { return run.status; }}};
  for (const Axis axis : kNamedAxes)
    all.push_back({to_string(axis), [axis](const RunSummary& run) {
                     return fmt::format("{}", run.dims[axis]);
                   }});
  const std::vector<Column> others = {
      {"pp_engine", [](const RunSummary& run) { return run.pp_engine; }},
      {"zero_stage", number(&RunSummary::zero_stage)},
      {"micro_batch_size", number(&RunSummary::micro_batch_size)},
      {"grad_acc", number(&RunSummary::grad_acc)},
      {"seq_len", number(&RunSummary::seq_len)},
      {"avg_tokens_s_gpu",
       [](const RunSummary& run) {
         return rounded(run.tokens_per_second_per_device);
       }},
      {"avg_mfu", [](const RunSummary& run) { return rounded(run.mfu); }},
      {"steps", number(&RunSummary::steps)},
      {"mfu_percent",
       [](const RunSummary& run) { return fmt::format("{:.2f}", run.mfu); }},
      {"loss",
       [](const RunSummary& run) { return fmt::format("{:.4f}", run.loss); }}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

const std::vector<Column>& columns() {
  static const std::vector<Column> all = make_columns();
  return all;
}

// Quoted where a comma, a quote or a line end is in it (RFC 4180).
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos)
    return text;
  std::string quoted = "\"";
  for (const char c : text)
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

constexpr const char* kPageBegin = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Runs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8884; text-align: right; }
th { cursor: pointer; } td:first-child, th:first-child { text-align: left; }
</style></head><body><h1>Runs</h1><div class="wide"><table id="runs"><thead><tr>)";

constexpr const char* kPageEnd = R"(</tbody></table></div><script>
const body = document.querySelector("#runs tbody");
document.querySelectorAll("#runs th").forEach((head, column) => {
  let direction = 1;
  head.addEventListener("click", () => {
    const rows = [...body.rows];
    const key = (row) => row.cells[column].textContent;
    const numeric = rows.every((row) => key(row) !== "" && !isNaN(key(row)));
    rows.sort((a, b) => direction * (numeric ? key(a) - key(b)
      : key(a).localeCompare(key(b))));
    direction = -direction;
    rows.forEach((row) => body.appendChild(row));
  });
});
</script></body></html>
)";

}  // namespace

RunSummary summarize(const RunRecord& run) {
  RunSummary summary;
  summary.name = run.name;
  const auto number = [&](const char* group, const char* key, int64_t other) {
    return config_number(run.config, group, key, other);
  };
  summary.dims = dims_of(run.config);
  summary.zero_stage = number("distributed", "zero_stage", 0);
  summary.micro_batch_size = number("training", "micro_batch_size", 0);
  summary.grad_acc = number("training", "gradient_accumulation_steps", 0);
  summary.seq_len = number("training", "seq_length", 0);
  summary.pp_engine = config_text(run.config, "distributed", "pp_engine", "");
  summary.status = end_of(run);
  if (run.steps.empty()) {
    if (summary.status.empty())
      summary.status = "empty";
    return summary;
  }
  summary.steps = step_number(run.steps.back());
  summary.loss = step_value(run.steps.back(), "loss");
  const int64_t wanted = last_step_of(run);
  if (summary.status.empty())
    summary.status =
        wanted > 0 && summary.steps >= wanted ? "completed" : "running";
  summary.tokens_per_second_per_device =
      mean_of(run.steps, "tokens_per_second_per_device");
  summary.mfu = mean_of(run.steps, "mfu");
  return summary;
}

std::string to_csv(const std::vector<RunSummary>& runs) {
  std::string text;
  for (const Column& column : columns())
    text += (text.empty() ? "" : ",") + std::string(column.name);
  text += "\n";
  for (const RunSummary& run : runs) {
    std::string line;
    for (const Column& column : columns())
      line += (line.empty() ? "" : ",") + csv_field(column.text(run));
    text += line + "\n";
  }
  return text;
}

std::string to_html(const std::vector<RunSummary>& runs) {
  std::string text = kPageBegin;
  for (const Column& column : columns())
    text += fmt::format("<th>{}</th>", column.name);
  text += "</tr></thead><tbody>\n";
  for (const RunSummary& run : runs) {
    text += "<tr>";
    for (const Column& column : columns())
      text += "<td>" + escaped_html(column.text(run)) + "</td>";
    text += "</tr>\n";
  }
  return text + kPageEnd;
}

std::string to_text(const std::vector<RunSummary>& runs) {
  std::string text;
  const auto& all = columns();
  std::vector<size_t> widths;
  for (const Column& column : all) {
    size_t width = std::string_view(column.name).size();
    for (const RunSummary& run : runs)
      width = std::max(width, column.text(run).size());
    widths.push_back(width);
  }
  const auto add_line = [&](const std::function<std::string(size_t)>& cell) {
    for (size_t i = 0; i < all.size(); ++i)
      text += i == 0 ? fmt::format("{:<{}}", cell(i), widths[i])
                     : fmt::format("  {:>{}}", cell(i), widths[i]);
    text += "\n";
  };
  add_line([&](size_t i) { return std::string(all[i].name); });
  for (const RunSummary& run : runs)
    add_line([&](size_t i) { return all[i].text(run); });
  return text;
}

}  // namespace brigade
