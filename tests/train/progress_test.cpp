// What a person sees on a terminal while nothing is printed: script(1) gives
// the program one.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::ProgramResult;

class OnATerminal : public ::testing::Test {
 protected:
  OnATerminal() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {{"seq_length", 48}, {"total_train_steps", 3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  ProgramResult show(const Arguments& arguments) const {
    const std::string line = fmt::format(
        "exec '{}' '{}'", testing::program_path(), fmt::join(arguments, "' '"));
    return testing::StartedProgram(
               "script",
               {"--quiet", "--return", "--command", line, "/dev/null"})
        .wait();
  }
  ProgramResult train(int ranks, const Arguments& more = {}) const {
    Arguments arguments = {
        "train",
        "--config",
        folder_ / "run.json",
        "--nproc",
        std::to_string(ranks),
        "logging.run_dir=" + (folder_ / "run").string(),
        fmt::format("distributed.dp_size={}", ranks)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return show(arguments);
  }

  testing::RunsFolder folder_;
};

TEST_F(OnATerminal, TheStepsHaveABarWithOneRankAndWithSeveral) {
  for (const int ranks : {1, 2}) {
    const ProgramResult shown = train(ranks, {"--overwrite"});
    ASSERT_EQ(shown.exit_code, 0) << shown.out;
    EXPECT_THAT(shown.out, AllOf(HasSubstr("] 100 %"), HasSubstr("ETA")))
        << ranks;
  }
}

TEST_F(OnATerminal, ARunThatContinuesShowsThatItVerifiesItsCheckpoint) {
  ASSERT_EQ(train(1).exit_code, 0);
  const std::string verifying =
      fmt::format("verifying {}", (folder_ / "run/checkpoints/3").string());
  for (const std::string& path :
       {std::string("auto"), (folder_ / "run/checkpoints/3").string()}) {
    const ProgramResult shown = train(
        1, {"checkpoint.load_path=" + path, "training.total_train_steps=4"});
    ASSERT_EQ(shown.exit_code, 0) << shown.out;
    EXPECT_THAT(shown.out, AllOf(HasSubstr(verifying), HasSubstr("MB/s")));
  }
  const ProgramResult shown = show(
      {"generate", "--run", (folder_ / "run").string(), "-p", "a", "-n", "1"});
  ASSERT_EQ(shown.exit_code, 0) << shown.out;
  EXPECT_THAT(shown.out, HasSubstr("verifying the checkpoint"));
}

// Files of other programs do not say what their ids are.
TEST_F(OnATerminal, OneRankShowsThatTokenIdsAreChecked) {
  fs::remove(folder_ / "tokens.json");
  const ProgramResult shown = train(1);
  ASSERT_EQ(shown.exit_code, 0) << shown.out;
  EXPECT_THAT(
      shown.out,
      AllOf(HasSubstr("checking the token ids of"), HasSubstr("M tokens/s")));
}

}  // namespace
}  // namespace brigade
