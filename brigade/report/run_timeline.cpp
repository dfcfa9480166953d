#include "brigade/report/run_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMostRanks = 64;
constexpr const char* kStep = "step ";

std::string name_of(const json& event) {
  return event.is_object() && event.contains("name") &&
                 event["name"].is_string()
             ? event["name"].get<std::string>()
             : "";
}

bool is_span(const json& event) {
  for (const char* key : {"ts", "dur", "tid"}) {
    if (!event.is_object() || !event.contains(key) ||
        !event[key].is_number_integer())
      return false;
  }
  return true;
}

std::string kind_of_span(const std::string& name) {
  if (name.starts_with("wait for "))
    return "wait";
  // "backward_weight" before "backward".
  for (const auto& [begin, kind] :
       {std::pair("forward", "F"),
        std::pair("backward_weight", "W"),
        std::pair("backward", "B")}) {
    if (name.starts_with(begin))
      return kind;
  }
  return "other";
}

struct RankTrace {
  int rank = 0;
  std::vector<json> spans;
  std::vector<std::pair<int64_t, const json*>> steps;  // pointers into spans
};

std::optional<RankTrace> read_trace(const fs::path& path, int rank) {
  const json file = json::parse(read_text_file(path), nullptr, false);
  if (!file.is_object() || !file.contains("traceEvents") ||
      !file["traceEvents"].is_array())
    return std::nullopt;
  RankTrace trace{rank, {}, {}};
  for (const json& event : file["traceEvents"]) {
    if (is_span(event))
      trace.spans.push_back(event);
  }
  for (const json& span : trace.spans) {
    if (name_of(span).starts_with(kStep))
      trace.steps.emplace_back(
          std::atoll(name_of(span).c_str() + std::string(kStep).size()), &span);
  }
  return trace;
}

const json* step_of(const RankTrace& trace, int64_t step) {
  for (const auto& [number, span] : trace.steps) {
    if (number == step)
      return span;
  }
  return nullptr;
}

// The step itself, its phase of all micro-batches and the waits for buckets
// would cover what is inside them.
bool is_shown(const std::string& name) {
  return !name.starts_with(kStep) && name != "micro-batches";
}

json describe_rank(const RankTrace& trace, int64_t step, int64_t origin_us) {
  const json* whole = step_of(trace, step);
  const auto begin_us = (*whole)["ts"].get<int64_t>();
  const int64_t end_us = begin_us + (*whole)["dur"].get<int64_t>();
  json rank = {
      {"rank", trace.rank},
      {"spans", json::array()},
      {"buckets", json::array()}};
  for (const json& span : trace.spans) {
    const auto at_us = span["ts"].get<int64_t>();
    const std::string name = name_of(span);
    if (at_us < begin_us || at_us > end_us || !is_shown(name))
      continue;
    const json args = span.value("args", json::object());
    if (span["tid"] == 2) {
      if (args.contains("bucket"))
        rank["buckets"].push_back(args);
      continue;
    }
    const auto ms = [&](int64_t us) {
      return static_cast<double>(us - origin_us) / 1e3;
    };
    json shown = {
        {"kind", kind_of_span(name)},
        {"name", name},
        {"begin", ms(at_us)},
        {"end", ms(at_us + span["dur"].get<int64_t>())}};
    for (const char* key : {"micro_batch", "stage"}) {
      if (args.contains(key) && args[key] != -1)
        shown[key] = args[key];
    }
    if (shown["kind"] == "wait" || shown["kind"] == "other")
      shown.erase("micro_batch");
    rank["spans"].push_back(std::move(shown));
  }
  return rank;
}

}  // namespace

json read_timeline(const fs::path& folder) {
  std::vector<RankTrace> traces;
  std::error_code error;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const fs::path path = folder / fmt::format("trace-rank{}.json", rank);
    if (!fs::exists(path, error))
      continue;
    if (auto trace = read_trace(path, rank))
      traces.push_back(std::move(*trace));
  }
  if (traces.empty() || traces.front().steps.empty())
    return nullptr;
  // A step that some rank has not written yet is left out.
  int64_t step = -1;
  for (const auto& [number, span] : traces.front().steps) {
    const bool all_have_it = std::all_of(
        traces.begin(), traces.end(), [&, number = number](const auto& trace) {
          return step_of(trace, number) != nullptr;
        });
    if (all_have_it)
      step = std::max(step, number);
  }
  if (step < 0)
    return nullptr;
  int64_t begin_us = std::numeric_limits<int64_t>::max();
  int64_t end_us = 0;
  for (const RankTrace& trace : traces) {
    const json& whole = *step_of(trace, step);
    begin_us = std::min(begin_us, whole["ts"].get<int64_t>());
    end_us = std::max(
        end_us, whole["ts"].get<int64_t>() + whole["dur"].get<int64_t>());
  }
  json timeline = {
      {"step", step},
      {"total_ms", static_cast<double>(end_us - begin_us) / 1e3},
      {"ranks", json::array()}};
  for (const RankTrace& trace : traces)
    timeline["ranks"].push_back(describe_rank(trace, step, begin_us));
  return timeline;
}

}  // namespace brigade
