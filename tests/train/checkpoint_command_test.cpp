// brigade checkpoint list|verify|inspect|prune|convert.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/run/checkpoint_folder.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::ProgramResult;

using Steps = std::vector<int64_t>;

class CheckpointCommand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    config["distributed"]["tp_size"] = 2;
    config["training"] = {{"seq_length", 48}, {"total_train_steps", 6}};
    config["checkpoint"]["save_frequency"] = 1;
    testing::write_file(*folder_ / "run.json", config.dump());
    const ProgramResult result = testing::run_program(
        {"train",
         "--config",
         (*folder_ / "run.json").string(),
         "--nproc",
         "2",
         "logging.run_dir=" + (*folder_ / "whole").string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override {
    fs::remove_all(run_);
    fs::copy(*folder_ / "whole", run_, fs::copy_options::recursive);
  }

  fs::path step(int number) const {
    return run_ / "checkpoints" / std::to_string(number);
  }
  void damage(int number) const {
    const fs::path file = step(number) / "optimizer-rank-1.safetensors";
    std::string bytes = testing::read_file(file);
    bytes[bytes.size() - 5] ^= 1;
    testing::write_file(file, bytes);
  }
  static ProgramResult checkpoint(const Arguments& more) {
    Arguments all = {"checkpoint"};
    all.insert(all.end(), more.begin(), more.end());
    return testing::run_program(all);
  }
  Steps steps() const {
    Steps steps;
    for (const CheckpointEntry& entry : list_checkpoints(run_ / "checkpoints"))
      steps.push_back(entry.step);
    return steps;
  }

  static testing::RunsFolder* folder_;
  const fs::path run_ = *folder_ / "run";
};

testing::RunsFolder* CheckpointCommand::folder_ = nullptr;

TEST_F(CheckpointCommand, ListHasALinePerCheckpointAndSaysWhatIsMissing) {
  fs::remove(step(3) / "model-rank-0.safetensors");
  const ProgramResult result = checkpoint({"list", run_.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 6);
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("       3  NOT VALID: "),
          HasSubstr("float32, 2 ranks, run ")));
}

TEST_F(CheckpointCommand, VerifyReadsEveryByte) {
  EXPECT_EQ(checkpoint({"verify", run_.string()}).exit_code, 0);
  damage(4);
  const ProgramResult all = checkpoint({"verify", run_.string()});
  EXPECT_EQ(all.exit_code, 4);
  EXPECT_THAT(
      all.out,
      AllOf(
          HasSubstr(step(4).string() + "  NOT VALID: "),
          HasSubstr("optimizer-rank-1.safetensors' was changed"),
          HasSubstr(step(5).string() + "  valid")));
  EXPECT_EQ(checkpoint({"verify", step(5).string()}).exit_code, 0);
  EXPECT_EQ(checkpoint({"verify", step(4).string()}).exit_code, 4);
}

TEST_F(CheckpointCommand, InspectSaysWhereACheckpointStands) {
  const ProgramResult result = checkpoint({"inspect", step(5).string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("step"), HasSubstr("5")));
}

TEST_F(CheckpointCommand, PruneKeepsTheNewestValidWhateverComesAfterIt) {
  damage(6);
  const Arguments keep = {
      "prune", run_.string(), "--keep-last", "1", "--keep-every", "2"};
  Arguments dry = keep;
  dry.emplace_back("--dry-run");
  const ProgramResult would = checkpoint(dry);
  EXPECT_EQ(would.exit_code, 0) << would.err;
  EXPECT_THAT(would.out, HasSubstr("would remove " + step(1).string()));
  EXPECT_EQ(steps(), Steps({1, 2, 3, 4, 5, 6}));

  const ProgramResult result = checkpoint(keep);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // 5 is the newest valid one, 6 is left for its owner to look at.
  EXPECT_EQ(steps(), Steps({2, 4, 5, 6}));
  EXPECT_EQ(checkpoint({"verify", step(5).string()}).exit_code, 0);
}

TEST_F(CheckpointCommand, PruneRemovesNothingWhereNoneIsValid) {
  for (int number = 1; number <= 6; ++number)
    damage(number);
  const ProgramResult result =
      checkpoint({"prune", run_.string(), "--keep-last", "1"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("holds no valid checkpoint"));
  EXPECT_EQ(steps(), Steps({1, 2, 3, 4, 5, 6}));
}

TEST_F(CheckpointCommand, ConvertHoldsTheSameTensorsInWholeFiles) {
  const fs::path whole = run_ / "converted";
  const ProgramResult result =
      checkpoint({"convert", step(6).string(), "--out", whole.string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(whole / "model.safetensors"));
  EXPECT_EQ(checkpoint({"verify", whole.string()}).exit_code, 0);
  const Checkpoint before(step(6));
  const Checkpoint after(whole);
  ASSERT_EQ(after.names(), before.names());
  for (const std::string& name : before.names())
    EXPECT_TRUE(torch::equal(after.read_whole(name), before.read_whole(name)))
        << name;
  EXPECT_EQ(after.manifest().step, 6);

  // What is there is not replaced, and what is damaged is not made to look
  // well.
  EXPECT_NE(
      checkpoint({"convert", step(5).string(), "--out", whole.string()})
          .exit_code,
      0);
  damage(4);
  const ProgramResult damaged = checkpoint(
      {"convert", step(4).string(), "--out", (run_ / "other").string()});
  EXPECT_EQ(damaged.exit_code, 4);
  EXPECT_THAT(damaged.err, HasSubstr("was changed after it was written"));
  EXPECT_FALSE(fs::exists(run_ / "other"));
}

}  // namespace
}  // namespace brigade
