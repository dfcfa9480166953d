#include "brigade/metrics/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
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

}  // namespace

std::string to_json_line(const StepMetrics& metrics) {
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
  json["time_ms"] = {
      {"data", times.data_ms},
      {"compute", times.compute_ms},
      {"tp", times.tp_ms},
      {"cp", times.cp_ms},
      {"pp", times.pp_ms},
      {"gradients", times.gradients_ms},
      {"norm", times.norm_ms},
      {"optimizer", times.optimizer_ms}};
  if (metrics.eval_loss)
    json["eval_loss"] = *metrics.eval_loss;
  if (metrics.skipped_steps > 0)
    json["skipped_steps"] = metrics.skipped_steps;
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

MetricsFile::MetricsFile(const std::filesystem::path& path)
    : path_(path), file_(path, std::ios::app) {
  if (!file_) {
    throw StorageError(
        fmt::format("[metrics] cannot write '{}'", path.string()));
  }
}

void MetricsFile::write(const StepMetrics& metrics) {
  file_ << to_json_line(metrics) << '\n' << std::flush;
  if (!file_) {
    throw StorageError(fmt::format(
        "[metrics] cannot append to '{}': is the disk full?", path_.string()));
  }
}

void MetricsFile::cut_back(
    const std::filesystem::path& path,
    int64_t last_step) {
  if (!std::filesystem::exists(path))
    return;
  std::ifstream file(path);
  std::string kept;
  bool changes = false;
  for (std::string line; std::getline(file, line);) {
    const auto json =
        parse_json_or_nothing(line).value_or(nlohmann::json::object());
    const bool stays = json.is_object() && json.contains("step") &&
                       json["step"].is_number_integer() &&
                       json["step"] <= last_step && !file.eof();
    if (stays)
      kept += line + '\n';
    changes = changes || !stays;
  }
  if (changes)
    write_text_file(path, kept);
}

}  // namespace brigade
