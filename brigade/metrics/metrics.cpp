#include "brigade/metrics/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "brigade/files/file.h"
#include "brigade/json/parse.h"
#include "brigade/metrics/trace.h"

namespace brigade {
namespace {

nlohmann::ordered_json buckets_json(const std::vector<SyncReport>& reports) {
  auto buckets = nlohmann::ordered_json::array();
  for (const SyncReport& report : reports) {
    for (const BucketTiming& bucket : report.buckets)
      buckets.push_back(to_json(bucket, report));
  }
  return buckets;
}

nlohmann::ordered_json preference_json(const PreferenceMetrics& metrics) {
  return {
      {"chosen_reward", metrics.chosen_reward},
      {"rejected_reward", metrics.rejected_reward},
      {"margin", metrics.margin()},
      {"accuracy", metrics.accuracy},
      {"chosen_log_prob", metrics.chosen_log_prob},
      {"rejected_log_prob", metrics.rejected_log_prob}};
}

}  // namespace

std::string to_json_line(const StepMetrics& metrics, ExpertRows rows) {
  nlohmann::ordered_json json;
  json["step"] = metrics.step;
  json["loss"] = metrics.loss;
  json["lr"] = metrics.lr;
  json["grad_norm"] = metrics.grad_norm;
  json["tokens"] = metrics.tokens;
  json["tokens_per_second"] = metrics.tokens_per_second;
  json["tokens_per_second_per_device"] = metrics.tokens_per_second_per_device;
  json["mfu"] = metrics.mfu;
  json["memory_gb"] = metrics.memory_gb;
  json["step_ms"] = metrics.step_ms;
  json["exposed_comm_ms"] = metrics.exposed_comm_ms;
  const StepTimes& times = metrics.times;
  auto& parts = json["time_ms"];
  parts = {{"data", times.data_ms}, {"compute", times.compute_ms}};
  for (const Axis axis : kLayerAxes)
    parts[to_string(axis)] = times[axis];
  parts[to_string(Axis::kPp)] = times[Axis::kPp];
  parts["gradients"] = times.gradients_ms;
  parts["norm"] = times.norm_ms;
  parts["optimizer"] = times.optimizer_ms;
  if (metrics.loss_tokens)
    json["loss_tokens"] = *metrics.loss_tokens;
  if (metrics.preference)
    json["preference"] = preference_json(*metrics.preference);
  if (metrics.eval_loss)
    json["eval_loss"] = *metrics.eval_loss;
  if (metrics.eval_preference)
    json["eval_preference"] = preference_json(*metrics.eval_preference);
  for (const auto& [part, loss] : metrics.part_eval_losses)
    json["part_eval_losses"][part] = loss;
  if (metrics.skipped_steps > 0)
    json["skipped_steps"] = metrics.skipped_steps;
  if (!metrics.experts.empty())
    json["experts"] = to_json(metrics.experts, rows);
  if (!metrics.reports.empty())
    json["buckets"] = buckets_json(metrics.reports);
  return json.dump();
}

std::string readable(double number) {
  if (number >= 1e12)
    return fmt::format("{:.3f}T", number / 1e12);
  if (number >= 1e9)
    return fmt::format("{:.3f}B", number / 1e9);
  if (number >= 1e6)
    return fmt::format("{:.3f}M", number / 1e6);
  if (number >= 1e3)
    return fmt::format("{:.3f}K", number / 1e3);
  return fmt::format("{:.3f}", number);
}

std::string log_line(
    const StepMetrics& metrics,
    const LogLineContext& context) {
  const std::string total =
      context.total_steps > 0 ? fmt::format("/{}", context.total_steps) : "";
  return fmt::format(
      "[rank {}] Step: {:<{}} | Loss: {:6.4f} | Global batch size: {:>7s} | "
      "Tokens/s: {:>7s} | Tokens/s/{}: {:>7s} | Tokens: {:>7s}{} | "
      "MFU: {:5.2f}% | Memory usage: {:6.2f}GB",
      context.rank,
      fmt::format("{}{}", metrics.step, total),
      5 + total.size(),
      metrics.loss,
      readable(static_cast<double>(context.global_batch_tokens)),
      readable(metrics.tokens_per_second),
      context.device,
      readable(metrics.tokens_per_second_per_device),
      readable(static_cast<double>(metrics.tokens)),
      context.max_tokens
          ? "/" + readable(static_cast<double>(*context.max_tokens))
          : "",
      metrics.mfu,
      metrics.memory_gb);
}

bool is_logged(
    const StepMetrics& metrics,
    int64_t log_frequency,
    int64_t total_steps) {
  return metrics.eval_loss || metrics.step == 1 ||
         metrics.step == total_steps || metrics.step % log_frequency == 0;
}

double resident_memory_gb() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e9;
}

namespace {

// The object of a whole line of a step up to `last_step`.
std::optional<nlohmann::json> step_of_line(
    const std::string& line,
    int64_t last_step) {
  auto json = parse_json_or_nothing(line);
  const bool is_step = json && json->is_object() && json->contains("step") &&
                       (*json)["step"].is_number_integer() &&
                       (*json)["step"] <= last_step;
  return is_step ? std::move(json) : std::nullopt;
}

// Each line that has an end; what is behind the last one goes to `rest`.
std::vector<std::string> whole_lines(
    const std::filesystem::path& path,
    std::string& rest) {
  std::vector<std::string> lines;
  const std::string text = read_text_file(path);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  rest = text.substr(begin);
  return lines;
}

}  // namespace

void MetricsFile::cut_back(
    const std::filesystem::path& path,
    int64_t last_step) {
  if (!std::filesystem::exists(path))
    return;
  std::string rest;
  std::string kept;
  const auto lines = whole_lines(path, rest);
  bool changes = !rest.empty();
  for (const std::string& line : lines) {
    if (step_of_line(line, last_step))
      kept += line + '\n';
    else
      changes = true;
  }
  if (changes)
    write_text_file(path, kept);
}

std::vector<double> read_losses(
    const std::filesystem::path& path,
    int64_t last_step) {
  std::vector<double> losses;
  if (!std::filesystem::is_regular_file(path))
    return losses;
  std::string rest;
  for (const std::string& line : whole_lines(path, rest)) {
    const auto step = step_of_line(line, last_step);
    if (step && step->contains("loss") && (*step)["loss"].is_number())
      losses.push_back((*step)["loss"].get<double>());
  }
  return losses;
}

}  // namespace brigade
