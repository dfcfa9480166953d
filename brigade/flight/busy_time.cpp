#include "brigade/flight/busy_time.h"

namespace brigade {

double busy_ms(
    const FlightRecording& recording,
    const std::string& group,
    int64_t since_ns) {
  double sum = 0;
  for (const FlightOperation& operation : recording.operations) {
    const auto& name =
        recording.groups[static_cast<size_t>(operation.group)].name;
    if (name == group && operation.launched_ns >= since_ns &&
        operation.finished_ns > 0)
      sum +=
          static_cast<double>(operation.finished_ns - operation.launched_ns) /
          1e6;
  }
  return sum;
}

}  // namespace brigade
