// brigade train up to the point at which training starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "program.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TrainCommandTest : public ProgramTest {
 protected:
  TrainCommandTest() {
    std::ofstream(folder_ / "run.json") << R"({
      "model": {"config": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128}},
      "training": {"seq_length": 64, "num_samples": 3},
      "dataset": {"name": "no/such/dataset"}})";
  }
  int train(std::vector<std::string> arguments) const {
    arguments.insert(
        arguments.begin(),
        {"train", "--config", (folder_ / "run.json").string()});
    return exit_code(start(arguments));
  }
};

TEST_F(TrainCommandTest, AMisspeltKeyIsExitCode2AndNamesTheNearest) {
  EXPECT_EQ(train({"--nproc", "2", "distributed.dpsize=2"}), 2);
  EXPECT_THAT(
      err(), AllOf(StartsWith("error: "), HasSubstr("/distributed/dp_size")));
  EXPECT_EQ(out(), "");
}

TEST_F(TrainCommandTest, AConfigWithoutItsOptionIsAskedFor) {
  EXPECT_EQ(exit_code(start({"train", "my.json"})), 2);
  EXPECT_THAT(err(), HasSubstr("given with --config my.json"));
}

TEST_F(TrainCommandTest, NprocMustBeTheProductOfTheLayout) {
  EXPECT_EQ(train({"--nproc", "2", "distributed.dp_size=3"}), 2);
  EXPECT_THAT(
      err(), HasSubstr("dp 3 * pp 1 * cp 1 * tp 1 = 3, but world size is 2"));
}

TEST_F(TrainCommandTest, PrintConfigShowsOriginsAndStops) {
  EXPECT_EQ(train({"--nproc", "4", "--print-config", "training.seed=7"}), 0);
  EXPECT_THAT(
      out(),
      AllOf(
          ::testing::ContainsRegex("training.seed +=  ?7 +# command line"),
          ::testing::ContainsRegex("training.seq_length += 64 +# file"),
          ::testing::ContainsRegex("distributed.dp_size += 4 +# default")));
  EXPECT_THAT(err(), HasSubstr("/training/num_samples: "));
}

TEST_F(TrainCommandTest, PrintScheduleDrawsAndStops) {
  EXPECT_EQ(
      train(
          {"--nproc",
           "2",
           "--print-schedule",
           "distributed.pp_size=2",
           "training.gradient_accumulation_steps=3"}),
      0);
  EXPECT_THAT(out(), AllOf(HasSubstr("rank 0 | F0"), HasSubstr("rank 1 | ")));
}

TEST_F(TrainCommandTest, MpirunDecidesTheWorldAndNprocMayNotContradictIt) {
  const std::string config = (folder_ / "run.json").string();
  const std::vector<std::string> mpirun = {
      "--allow-run-as-root",
      "--oversubscribe",
      "-n",
      "2",
      kProgram,
      "train",
      "--config",
      config,
      "--print-config"};
  if (exit_code(start_program("mpirun", {"--version"})) != 0)
    GTEST_SKIP() << "mpirun is not installed";
  EXPECT_EQ(exit_code(start_program("mpirun", mpirun)), 0);
  EXPECT_THAT(
      out(), ::testing::ContainsRegex("distributed.dp_size += 2 +# default"));
  auto contradicting = mpirun;
  contradicting.insert(contradicting.end(), {"--nproc", "3"});
  EXPECT_EQ(exit_code(start_program("mpirun", contradicting)), 2);
  EXPECT_THAT(
      err(), HasSubstr("--nproc 3, but mpirun has already started 2 ranks"));
}

TEST_F(TrainCommandTest, HelpConfigListsEveryKey) {
  EXPECT_EQ(exit_code(start({"train", "--help-config"})), 0);
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("distributed.tp_size  (integer >= 1; default 1)"),
          Not(HasSubstr("| key |"))));
}

}  // namespace
}  // namespace brigade
