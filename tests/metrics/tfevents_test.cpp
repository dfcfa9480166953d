#include "brigade/metrics/tfevents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "brigade/base/error.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

// RFC 3720, B.4.
TEST(Crc32c, IsThatOfTheRfc) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(TfEvent, IsTheProtocolBufferByHand) {
  // wall_time 1.0, step 300, summary { value { tag "a" simple_value 0.5 } }
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"  // 1: 1.0
      "\x10\xac\x02"                          // 2: 300
      "\x2a\x0a"                              // 5: 10 bytes
      "\x0a\x08\x0a\x01"
      "a"
      "\x15\x00\x00\x00\x3f",
      9 + 3 + 2 + 5 + 5);
  EXPECT_EQ(tfevent(1.0, 300, {{"a", 0.5F}}), expected);
}

TEST(TfEvent, StartIsTheProtocolBufferByHand) {
  // wall_time 1.0, step 300, session_log { status START }
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"  // 1: 1.0
      "\x10\xac\x02"                          // 2: 300
      "\x3a\x02\x08\x01",                     // 7: 1: 1
      9 + 3 + 4);
  EXPECT_EQ(tfevent_start(1.0, 300), expected);
}

// TensorBoard reads by name: a start in the same second, by a process with a
// smaller number, or after the clock was put back, comes last all the same.
TEST(TfEventsFile, ComesAfterThoseThatAreThere) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const TfEventsFile file(folder, i == 0 ? "zebra" : "ant", 1);
    names.push_back(file.path().filename().string());
  }
  std::ofstream(folder / "events.out.tfevents.4000000000.host.1.0");
  names.emplace_back("events.out.tfevents.4000000000.host.1.0");
  names.push_back(TfEventsFile(folder, "ant", 1).path().filename().string());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 5U);
}

TEST(TfEventsFile, IsASequenceOfCheckedRecords) {
  const TemporaryFolder folder;
  TfEventsFile file(folder, "host", 7);
  StepMetrics metrics;
  metrics.step = 7;
  metrics.eval_loss = 2.5;
  file.write(metrics);
  EXPECT_THAT(
      file.path().filename().string(),
      ::testing::MatchesRegex(
          "events\\.out\\.tfevents\\.[0-9]+\\.host\\.[0-9]+\\.0"));
  std::ifstream stream(file.path(), std::ios::binary);
  const std::string bytes(
      std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>{});
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    ASSERT_LE(at + 16 + length, bytes.size());
    records.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 3U);
  EXPECT_THAT(records[0], ::testing::HasSubstr("brain.Event:2"));
  EXPECT_THAT(records[1], ::testing::EndsWith("\x10\x07\x3a\x02\x08\x01"));
  EXPECT_THAT(records[2], ::testing::HasSubstr("train/loss"));
  EXPECT_THAT(records[2], ::testing::HasSubstr("eval/loss"));
  EXPECT_THROW(TfEventsFile(folder / "nowhere", "host", 1), StorageError);
}

}  // namespace
}  // namespace brigade
