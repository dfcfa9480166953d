// What a run finds in its folder of runs before it.
#include "brigade/metrics/run_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

class RunFolderRecord : public ::testing::Test {
 protected:
  void make(const std::string& name) const {
    std::ofstream file(folder_ / name);
  }
  bool has(const std::string& name) const { return fs::exists(folder_ / name); }
  void overwrite() const {
    TrainConfig config;
    config.logging.run_dir = folder_.path();
    config.run.overwrite = true;
    open_run_folder(config);
  }
  const TemporaryFolder folder_;
};

TEST_F(RunFolderRecord, OverwriteRemovesWhatARunWroteThere) {
  for (const char* name :
       {"metrics.jsonl", "metrics.csv", "events.out.tfevents.1"})
    make(name);
  overwrite();
  for (const char* name :
       {"metrics.jsonl", "metrics.csv", "events.out.tfevents.1"})
    EXPECT_FALSE(has(name)) << name;
}

TEST_F(RunFolderRecord, OverwriteLeavesFilesOfAFolderWithoutARun) {
  make("metrics.csv");
  make("events.out.tfevents.1");
  overwrite();
  EXPECT_TRUE(has("metrics.csv"));
  EXPECT_TRUE(has("events.out.tfevents.1"));
}

}  // namespace
}  // namespace brigade
