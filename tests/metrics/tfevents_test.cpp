#include "brigade/metrics/tfevents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

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

TEST(TfEventsFile, IsASequenceOfCheckedRecords) {
  std::string pattern = ::testing::TempDir() + "tfevents.XXXXXX";
  const fs::path folder = ::mkdtemp(pattern.data());
  TfEventsFile file(folder, "host");
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
  ASSERT_EQ(records.size(), 2U);
  EXPECT_THAT(records[0], ::testing::HasSubstr("brain.Event:2"));
  EXPECT_THAT(records[1], ::testing::HasSubstr("train/loss"));
  EXPECT_THAT(records[1], ::testing::HasSubstr("eval/loss"));
  fs::remove_all(folder);
  EXPECT_THROW(TfEventsFile(folder / "nowhere", "host"), StorageError);
}

}  // namespace
}  // namespace brigade
