// {n} in logging.run_dir.
#include <gtest/gtest.h>

#include <filesystem>

#include "brigade/metrics/run_folder.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

class RunFolderNumber : public ::testing::Test {
 protected:
  void make(const std::string& path) const {
    fs::create_directories(folder_ / path);
  }
  // The folder that a run gets, below the test's own.
  std::string numbered(
      const std::string& pattern,
      const std::string& load_path,
      const std::string& save_dir = "") const {
    TrainConfig config;
    config.logging.run_dir = folder_ / pattern;
    config.checkpoint.load_path = load_path;
    config.checkpoint.save_dir =
        save_dir.empty() ? "" : (folder_ / save_dir).string();
    number_run_folder(config);
    return fs::relative(config.logging.run_dir, folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_F(RunFolderNumber, IsTheLowestThatIsFree) {
  EXPECT_EQ(numbered("a", ""), "a");
  EXPECT_EQ(numbered("a-{n}", ""), "a-1");
  for (const char* path : {"a-1/checkpoints/5", "a-2", "a-4"})
    make(path);
  EXPECT_EQ(numbered("a-{n}", ""), "a-3");
  EXPECT_EQ(numbered("a-{n}", "elsewhere"), "a-3");
}

TEST_F(RunFolderNumber, OfARunThatContinuesIsTheHighestWithCheckpoints) {
  EXPECT_EQ(numbered("a-{n}", "auto"), "a-1");
  make("a-1");
  EXPECT_EQ(numbered("a-{n}", "auto"), "a-2");
  // Of the others some have none, and some are no numbers.
  for (const char* path :
       {"a-9/checkpoints/20",
        "a-10/checkpoints/5",
        "a-11/checkpoints",
        "a-012/checkpoints/5",
        "a-x/checkpoints/5",
        "a-/checkpoints/5",
        "b-13/checkpoints/5",
        "a-14b/checkpoints/5",
        "a-15/checkpoints/0005",
        "a-3/b/checkpoints/5"})
    make(path);
  EXPECT_EQ(numbered("a-{n}", "auto"), "a-10");
  EXPECT_EQ(numbered("a-{n}/b", "auto"), "a-3/b");
  make("saved/11/5");
  EXPECT_EQ(numbered("a-{n}", "auto", "saved/{n}"), "a-11");
}

}  // namespace
}  // namespace brigade
