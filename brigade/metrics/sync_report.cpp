#include "brigade/metrics/sync_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/readable.h"
#include "brigade/base/units.h"

namespace brigade {
namespace {

double to_ms(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace

int64_t SyncReport::bytes() const {
  int64_t total = 0;
  for (const BucketTiming& bucket : buckets)
    total += bucket.bytes;
  return total;
}

int64_t SyncReport::communication_ns() const {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const BucketTiming& bucket : buckets)
    spans.emplace_back(bucket.launched_ns, bucket.finished_ns);
  std::sort(spans.begin(), spans.end());
  int64_t total = 0;
  int64_t covered_until = 0;
  for (const auto& [begin, end] : spans) {
    total += std::max<int64_t>(0, end - std::max(begin, covered_until));
    covered_until = std::max(covered_until, end);
  }
  return total;
}

int64_t SyncReport::exposed_ns() const {
  int64_t total = 0;
  for (const BucketTiming& bucket : buckets)
    total += bucket.waited_ns();
  return total;
}

int64_t SyncReport::overlapped_ns() const {
  return std::max<int64_t>(0, communication_ns() - exposed_ns());
}

double SyncReport::bus_bandwidth_gb_s(int ranks) const {
  const int64_t time_ns = communication_ns();
  if (time_ns == 0 || ranks < 2)
    return 0;
  return 2.0 * static_cast<double>(bytes()) * (ranks - 1) / ranks /
         static_cast<double>(time_ns);
}

std::string SyncReport::table(int ranks) const {
  std::string text = fmt::format(
      "{:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}\n",
      "bucket",
      "MiB",
      "ready ms",
      "launch ms",
      "end ms",
      "waited ms");
  for (const BucketTiming& bucket : buckets) {
    text += fmt::format(
        "{:>6}  {:>9.2f}  {:>9.2f}  {:>9.2f}  {:>9.2f}  {:>9.2f}\n",
        bucket.index,
        static_cast<double>(bucket.bytes) / static_cast<double>(MiB),
        to_ms(bucket.ready_ns - backward_begin_ns),
        to_ms(bucket.launched_ns - backward_begin_ns),
        to_ms(bucket.finished_ns - backward_begin_ns),
        to_ms(bucket.waited_ns()));
  }
  const double communication = to_ms(communication_ns());
  const double exposed = to_ms(exposed_ns());
  text += fmt::format(
      "backward {:.2f} ms, communication {:.2f} ms: {:.2f} ms exposed "
      "({:.0f} %), {:.2f} ms overlapped; {}/s on the wire\n",
      to_ms(backward_end_ns - backward_begin_ns),
      communication,
      exposed,
      communication > 0 ? 100 * exposed / communication : 0.0,
      to_ms(overlapped_ns()),
      readable_bytes(bus_bandwidth_gb_s(ranks) * 1e9));
  return text;
}

}  // namespace brigade
