#include "brigade/metrics/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace brigade {
namespace {

using nlohmann::ordered_json;

// Whole: fractions of a number as large as a clock's are rounded, and spans
// that touch would overlap, which viewers answer by dropping one.
int64_t to_us(int64_t ns) {
  return ns / 1000;
}

ordered_json name_of(const char* what, int rank, int lane, std::string name) {
  return {
      {"ph", "M"},
      {"name", what},
      {"pid", rank},
      {"tid", lane},
      {"args", {{"name", std::move(name)}}}};
}

}  // namespace

void Trace::add(const SyncReport& report, int stage) {
  std::vector<BucketTiming> buckets = report.buckets;
  std::ranges::sort(buckets, {}, [](const BucketTiming& bucket) {
    return std::tuple(bucket.finished_ns, bucket.index);
  });
  int64_t covered_until_ns = 0;
  for (const BucketTiming& bucket : buckets) {
    ordered_json args = brigade::to_json(bucket, report);
    args["stage"] = stage;
    const int64_t begin_ns = std::max(bucket.launched_ns, covered_until_ns);
    covered_until_ns = std::max(begin_ns, bucket.finished_ns);
    add(
        {TraceLane::kCommunication,
         fmt::format("bucket {}", bucket.index),
         begin_ns,
         covered_until_ns,
         std::move(args)});
    add(
        {TraceLane::kCompute,
         fmt::format("wait for bucket {}", bucket.index),
         bucket.wait_begin_ns,
         bucket.wait_end_ns,
         {{"stage", stage}}});
  }
}

std::string Trace::to_json() const {
  std::vector<const TraceSpan*> sorted;
  for (const TraceSpan& span : spans_)
    sorted.push_back(&span);
  // An outer span before those inside it.
  std::ranges::stable_sort(sorted, {}, [](const TraceSpan* span) {
    return std::tuple(span->lane, span->begin_ns, -span->end_ns);
  });
  auto events = ordered_json::array();
  events.push_back(
      name_of("process_name", rank_, 0, fmt::format("rank {}", rank_)));
  events.push_back(name_of("thread_name", rank_, 1, "compute"));
  events.push_back(name_of("thread_name", rank_, 2, "communication"));
  for (const TraceSpan* span : sorted) {
    const bool waits = span->name.starts_with("wait for ");
    ordered_json event{
        {"ph", "X"},
        {"name", span->name},
        {"cat",
         waits                                     ? "wait"
         : span->lane == TraceLane::kCommunication ? "communication"
                                                   : "compute"},
        {"pid", rank_},
        {"tid", static_cast<int>(span->lane)},
        {"ts", to_us(span->begin_ns)},
        {"dur", to_us(span->end_ns) - to_us(span->begin_ns)}};
    if (!span->args.is_null())
      event["args"] = span->args;
    events.push_back(std::move(event));
  }
  const ordered_json file{
      {"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return file.dump() + "\n";
}

ordered_json to_json(const BucketTiming& bucket, const SyncReport& report) {
  const auto since_begin_ms = [&](int64_t ns) {
    return static_cast<double>(ns - report.backward_begin_ns) / 1e6;
  };
  return {
      {"bucket", bucket.index},
      {"bytes", bucket.bytes},
      {"ready_ms", since_begin_ms(bucket.ready_ns)},
      {"launched_ms", since_begin_ms(bucket.launched_ns)},
      {"finished_ms", since_begin_ms(bucket.finished_ns)},
      {"waited_ms", static_cast<double>(bucket.waited_ns()) / 1e6}};
}

}  // namespace brigade
