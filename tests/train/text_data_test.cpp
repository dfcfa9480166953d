// Training on text that nobody prepared, against the dataset that `brigade
// prepare` makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

class TextData : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    const std::string text = testing::made_up_text(6000);
    testing::write_file(*folder_ / "text.txt", text);
    auto config =
        testing::tiny_run(testing::prepare_bytes(*folder_ / "tokens", text));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 6},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static ProgramResult train(const std::string& name, const Arguments& more) {
    return testing::run_program(
        testing::train_arguments(*folder_ / "run.json", run(name), more),
        {{"XDG_CACHE_HOME", (*folder_ / "cache").string()}});
  }
  static std::string text() {
    return "dataset.text=" + (*folder_ / "text.txt").string();
  }
  // The losses of a run on the prepared dataset and of one on the text.
  static void expect_equal(const std::string& name, const Arguments& more) {
    SCOPED_TRACE(name);
    fs::remove_all(*folder_ / "cache");
    ProgramResult result = train(name + "_prepared", more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    Arguments with_text = more;
    with_text.push_back(text());
    result = train(name + "_text", with_text);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto losses = losses_of(run(name + "_text"));
    EXPECT_EQ(losses.size(), 6U);
    EXPECT_EQ(losses, losses_of(run(name + "_prepared")));
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* TextData::folder_ = nullptr;

TEST_F(TextData, HasTheLossesOfThePreparedDataset) {
  expect_equal("in_order", {});
  expect_equal("shuffled", {"dataset.shuffle=true"});
  expect_equal("blocks", {"dataset.shuffle=true", "dataset.shuffle_block=8"});
  expect_equal("held_out", {"training.eval_every=3", "training.eval_steps=1"});
  expect_equal(
      "ranks",
      {"--nproc",
       "2",
       "distributed.dp_size=2",
       "training.micro_batch_size=2",
       "dataset.shuffle=true",
       "dataset.shuffle_block=8"});
  expect_equal(
      "tp", {"--nproc", "2", "distributed.tp_size=2", "dataset.shuffle=true"});
  expect_equal(
      "pp_and_cp",
      {"--nproc",
       "4",
       "distributed.pp_size=2",
       "distributed.cp_size=2",
       "training.micro_batch_size=2",
       "training.gradient_accumulation_steps=2"});
}

TEST_F(TextData, ContinuesWhereItWas) {
  Arguments more = {
      text(),
      "dataset.shuffle=true",
      "dataset.shuffle_block=8",
      "checkpoint.save_frequency=3"};
  ASSERT_EQ(train("whole", more).exit_code, 0);
  // The tokens are made again.
  fs::remove_all(*folder_ / "cache");
  more.push_back(
      "checkpoint.load_path=" + (run("whole") / "checkpoints/3").string());
  const ProgramResult result = train("rest", more);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto whole = losses_of(run("whole"));
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_THAT(
      losses_of(run("rest")),
      ::testing::ElementsAre(whole[3], whole[4], whole[5]));
}

TEST_F(TextData, ContinuesInAnotherLayoutAsThePreparedDatasetDoes) {
  const Arguments order = {"dataset.shuffle=true", "dataset.shuffle_block=8"};
  const auto losses_after = [&](const std::string& name, Arguments first) {
    first.insert(first.end(), order.begin(), order.end());
    Arguments second = first;
    first.insert(
        first.end(),
        {"--nproc",
         "2",
         "distributed.dp_size=2",
         "training.micro_batch_size=2",
         "checkpoint.save_frequency=3"});
    ProgramResult result = train(name, first);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    fs::remove_all(*folder_ / "cache");
    const fs::path saved = run(name) / "checkpoints/3";
    second.insert(
        second.end(),
        {"--nproc",
         "4",
         "distributed.tp_size=2",
         "distributed.pp_size=2",
         "training.micro_batch_size=2",
         "training.gradient_accumulation_steps=2",
         "checkpoint.load_path=" + saved.string()});
    result = train(name + "_rest", second);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses_of(run(name + "_rest"));
  };
  const auto losses = losses_after("moved_text", {text()});
  EXPECT_EQ(losses.size(), 3U);
  EXPECT_EQ(losses, losses_after("moved_prepared", {}));
}

TEST_F(TextData, NamesWrongTextOptions) {
  EXPECT_THAT(
      train("absent", {"dataset.text=/no/such/text"}).err,
      AllOf(HasSubstr("/dataset/text names"), HasSubstr("/no/such/text")));
  EXPECT_THAT(
      train("block", {text(), "dataset.shuffle_block=8"}).err,
      HasSubstr("/dataset/shuffle_block = 8 has no meaning"));
  const auto other = *folder_ / "other.jsonl";
  testing::write_file(other, "{\"body\": \"a\"}\n");
  const ProgramResult result =
      train("member", {"dataset.text=" + other.string()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("the object has no member 'text'"));
}

}  // namespace
}  // namespace brigade
