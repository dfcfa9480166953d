#include "brigade/flight/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

FlightRecording made_up(int rank) {
  FlightRecording recording;
  recording.rank = rank;
  recording.step = 12;
  recording.reason = "a reason with \"quotes\" and \xff bytes";
  recording.paused_ns = 5;
  recording.written_ns = 30;
  recording.begun_step_ns = 10;
  recording.groups = {
      {.name = "dp", .members = {1, 3}, .member_names = {"rank 1", "rank 3"}}};
  recording.operations = {
      {.group = 0,
       .kind = "broadcast",
       .dtype = "Long",
       .numel = 9,
       .sequence_number = 4,
       .peer = 3,
       .step = 12,
       .launched_ns = 11,
       .finished_ns = 12,
       .state = FlightState::kFailed,
       .is_awaited = true}};
  return recording;
}

TEST(FlightRecording, IsReadBackAsItWasWritten) {
  const TemporaryFolder folder;
  for (const int rank : {10, 2})
    write_flight_recording(folder.path() / "flight", made_up(rank));
  auto second = made_up(2);
  auto tenth = made_up(10);
  // JSON strings are Unicode.
  second.reason = tenth.reason = "a reason with \"quotes\" and \ufffd bytes";
  EXPECT_THAT(
      read_flight_recordings(folder.path() / "flight"),
      ElementsAre(second, tenth));
}

TEST(FlightRecording, AFolderWithoutOnesSaysWhenTheyAreWritten) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      [&] { read_flight_recordings(folder.path()); },
      ThrowsMessage<DataError>(HasSubstr("holds no recordings")));
}

TEST(FlightRecording, AnErrorNamesTheFileAndThePlace) {
  const TemporaryFolder folder;
  write_flight_recording(folder.path(), made_up(0));
  const auto path = folder.path() / "rank-0.json";
  std::string text = read_text_file(path.string());
  const std::string group = "\"group\": 0";
  text.replace(text.find(group), group.size(), "\"group\": 7");
  write_text_file(path, text);
  EXPECT_THAT(
      [&] { read_flight_recordings(folder.path()); },
      ThrowsMessage<DataError>(
          AllOf(HasSubstr("rank-0.json:"), HasSubstr("/operations/0/group"))));
}

}  // namespace
}  // namespace brigade
