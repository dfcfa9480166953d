#include "brigade/flight/busy_time.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

FlightOperation operation(int group, int64_t launched_ns, int64_t finished_ns) {
  FlightOperation made;
  made.group = group;
  made.step = 4;
  made.launched_ns = launched_ns;
  made.finished_ns = finished_ns;
  return made;
}

// A step that checks its gradients has already run its micro-batches once.
TEST(BusyTime, CountsTheGroupsOperationsFromATimeOn) {
  FlightRecording recording;
  recording.step = 4;
  recording.groups = {{.name = "tp"}, {.name = "cp"}};
  recording.operations = {
      operation(0, 1'000'000, 9'000'000),
      operation(1, 2'000'000, 9'000'000),
      operation(0, 10'000'000, 13'000'000),
      operation(0, 20'000'000, 20'500'000),
      operation(1, 30'000'000, 32'000'000),
      operation(1, 40'000'000, 0)};
  EXPECT_EQ(busy_ms(recording, "tp", 10'000'000), 3.5);
  EXPECT_EQ(busy_ms(recording, "cp", 10'000'000), 2.0);
  EXPECT_EQ(busy_ms(recording, "dp", 0), 0.0);
}

}  // namespace
}  // namespace brigade
