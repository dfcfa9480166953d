#include "brigade/metrics/run_events.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "brigade/base/error.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    lines.push_back(json::parse(line));
  return lines;
}

class RunEventsTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(RunEventsTest, EventsBeforeTheFolderIsThereAreWrittenOnceItIs) {
  const fs::path path = folder_ / "events.jsonl";
  RunEvents events;
  events.write("message", {{"text", "early"}});
  EXPECT_FALSE(fs::exists(path));
  events.open(path);
  events.write("end", {{"step", 3}});
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["event"], "message");
  EXPECT_EQ(lines[0]["text"], "early");
  EXPECT_EQ(lines[1]["step"], 3);
  EXPECT_LE(lines[0]["time"], lines[1]["time"]);
}

TEST_F(RunEventsTest, AnotherStartAddsToWhatIsThere) {
  const fs::path path = folder_ / "events.jsonl";
  for (int start = 0; start < 2; ++start) {
    RunEvents events;
    events.open(path);
    events.write("start", {{"step", start}});
  }
  EXPECT_EQ(lines_of(path).size(), 2U);
}

TEST_F(RunEventsTest, AFolderThatCannotBeWrittenIsAStorageError) {
  RunEvents events;
  EXPECT_THROW(events.open(folder_ / "no" / "events.jsonl"), StorageError);
}

}  // namespace
}  // namespace brigade
