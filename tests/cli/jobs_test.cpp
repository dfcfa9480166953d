// brigade submit and brigade status with an sbatch that records its arguments.
// scripts/slurm_cluster.sh --test runs them under a real Slurm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobsTest : public ProgramTest {
 protected:
  JobsTest() : jobs_(folder_ / "jobs"), configs_(folder_ / "configs") {
    fs::create_directory(configs_);
    write_config("a");
    fs::create_directory(folder_ / "bin");
    write_program("sbatch", "echo \"$@\" >>" + log() + "; echo '77;cluster'");
    write_program("scancel", "echo scancel \"$@\" >>" + log());
  }

  std::string log() const { return (folder_ / "log").string(); }

  void write_config(const std::string& name) const {
    std::ofstream(configs_ / (name + ".json")) << R"({
      "model": {"config": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128}},
      "training": {"seq_length": 64}, "dataset": {"name": "data"}})";
  }

  void write_program(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / "bin" / name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  int brigade(std::vector<std::string> arguments) const {
    arguments.insert(
        arguments.begin(),
        {"PATH=" + (folder_ / "bin").string() + ":/usr/bin:/bin", kProgram});
    return exit_code(start_program("env", arguments));
  }
  int submit(std::vector<std::string> arguments) const {
    arguments.insert(
        arguments.begin(),
        {"submit", "--launcher", "slurm", "--jobs", jobs_.string()});
    return brigade(arguments);
  }

  fs::path jobs_;
  fs::path configs_;
};

TEST_F(JobsTest, ADryRunPrintsTheScriptAndChangesNothing) {
  ASSERT_EQ(
      submit(
          {"--config",
           (configs_ / "a.json").string(),
           "--nodes",
           "2",
           "--gpus-per-node",
           "4",
           "--dry-run"}),
      0)
      << err();
  EXPECT_THAT(
      out(),
      AllOf(
          StartsWith("#!/bin/bash\n"),
          HasSubstr("#SBATCH --ntasks=8\n"),
          HasSubstr("srun -n 8 ")));
  EXPECT_FALSE(fs::exists(jobs_));
  EXPECT_FALSE(fs::exists(log()));
}

TEST_F(JobsTest, EachConfigOfAFolderIsOneJobAndOnlySubmitsAgain) {
  write_config("b");
  ASSERT_EQ(submit({"--config", configs_.string()}), 0) << err();
  EXPECT_EQ(out(), "a: job 77\nb: job 77\n");
  EXPECT_EQ(
      read_if_there(jobs_ / "a" / "config.json"),
      read_if_there(configs_ / "a.json"));
  std::ofstream(jobs_ / "a" / "status") << "failed 2 77\n";
  std::ofstream(jobs_ / "a" / "output") << "error: rank 0: no dataset\n";

  ASSERT_EQ(brigade({"status", jobs_.string()}), 0) << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("error: rank 0: no dataset"),
          HasSubstr("1 pending, 1 fail")));

  // Both are already submitted.
  const std::string before = out();
  ASSERT_EQ(submit({"--config", configs_.string()}), 0);
  EXPECT_EQ(out(), before);
  EXPECT_THAT(err(), HasSubstr("is fail; --only fail submits it again"));

  ASSERT_EQ(submit({"--config", configs_.string(), "--only", "fail,oom"}), 0);
  EXPECT_EQ(out(), before + "a: job 77\n");
  EXPECT_EQ(read_if_there(jobs_ / "a" / "status"), "pending\n");
  // A pending job is cancelled first.
  ASSERT_EQ(submit({"--config", configs_.string(), "--only", "pending"}), 0);
  EXPECT_THAT(read_if_there(log()), HasSubstr("scancel --quiet 77"));
}

// The other tasks may be running or completed.
TEST_F(JobsTest, OnlySubmitsAgainTheTasksOfAnArrayThatItNames) {
  const std::string config = (configs_ / "a.json").string();
  ASSERT_EQ(submit({"--config", config, "--array", "0-4"}), 0) << err();
  const auto set_status = [&](int task, const std::string& text) {
    std::ofstream(jobs_ / "a" / ("status." + std::to_string(task)))
        << text << "\n";
  };
  set_status(0, "completed 80");
  set_status(1, "failed 2 81");
  set_status(2, "running 82");
  set_status(3, "pending 83");
  ASSERT_EQ(
      submit({"--config", config, "--array", "0-4", "--only", "fail,pending"}),
      0)
      << err();
  EXPECT_THAT(
      read_if_there(jobs_ / "a" / "job.sbatch"),
      HasSubstr("#SBATCH --array=1,3\n"));
  EXPECT_TRUE(fs::exists(jobs_ / "a" / "status.0"));
  EXPECT_EQ(read_if_there(jobs_ / "a" / "status.1"), "pending\n");
  EXPECT_TRUE(fs::exists(jobs_ / "a" / "status.2"));
  // The running task stays in the cluster.
  EXPECT_THAT(
      read_if_there(log()),
      AllOf(
          HasSubstr("scancel --quiet 83\n"),
          ::testing::Not(HasSubstr("scancel --quiet 77"))));
  // Those that wait are listed, and cancelled without the others.
  ASSERT_EQ(brigade({"status", jobs_.string()}), 0) << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("2 pending, 1 running, 1 completed"), HasSubstr(" 77_3")));
  ASSERT_EQ(
      submit({"--config", config, "--array", "0-4", "--only", "pending"}), 0);
  EXPECT_THAT(
      read_if_there(log()),
      AllOf(
          HasSubstr("scancel --quiet 77_1\n"),
          HasSubstr("scancel --quiet 77_3\n"),
          ::testing::Not(HasSubstr("scancel --quiet 77\n"))));
}

TEST_F(JobsTest, AJobContinuesTheCheckpointThatItsConfigNames) {
  const std::string config = (configs_ / "a.json").string();
  const auto script = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--config", config, "--dry-run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string before = out();
    EXPECT_EQ(submit(arguments), 0) << err();
    return out().substr(before.size());
  };
  EXPECT_THAT(script({}), HasSubstr("checkpoint.load_path=auto\n"));
  EXPECT_THAT(
      script({"checkpoint.load_path=runs/base"}),
      HasSubstr("'checkpoint.load_path=runs/base'"));
  std::string text = read_if_there(config);
  text.replace(
      text.rfind('}'), 1, ", \"checkpoint\": {\"load_path\": \"in/file\"}}");
  std::ofstream(config) << text;
  EXPECT_THAT(script({}), HasSubstr("'checkpoint.load_path=in/file'"));
  for (const std::string folder :
       {"checkpoint.save_dir=saved",
        "checkpoint.save_dir=saved/%a",
        "logging.run_dir=elsewhere"}) {
    EXPECT_EQ(submit({"--config", config, "--array", "0-1", folder}), 2);
    EXPECT_THAT(
        err(),
        HasSubstr(
            "checkpoint.load_path=in/file and " + folder +
            " are both given; leave the latter out"));
    EXPECT_THAT(
        script({"--array", "0-1", "checkpoint.load_path=auto", folder}),
        HasSubstr("checkpoint.load_path=auto\n"));
    EXPECT_EQ(
        submit(
            {"--config",
             config,
             "--array",
             "0-1",
             "checkpoint.load_path=runs/%a",
             folder}),
        2);
  }
}

TEST_F(JobsTest, ReportsErrorsBeforeAnythingIsSubmitted) {
  const std::string config = (configs_ / "a.json").string();
  EXPECT_EQ(
      submit({"--config", config, "--nodes", "3", "distributed.tp_size=2"}), 2);
  EXPECT_THAT(err(), HasSubstr("world size is 3"));
  EXPECT_EQ(submit({"--config", (folder_ / "none").string()}), 2);
  EXPECT_THAT(err(), HasSubstr("is no config file and no folder with"));
  EXPECT_EQ(submit({"--config", config, "--time", "04:99:00"}), 2);
  EXPECT_THAT(err(), HasSubstr("--time: expected a time such as 04:00:00"));
  for (const char* array : {"5-1", "a", "1-", "0-3,"}) {
    EXPECT_EQ(submit({"--config", config, "--array", array}), 2) << array;
    EXPECT_THAT(err(), HasSubstr("--array: expected task numbers such as"));
  }
  EXPECT_EQ(
      brigade(
          {"submit",
           "--launcher",
           "slurm",
           "--config",
           config,
           "--jobs",
           "a\nb",
           "--dry-run"}),
      2);
  EXPECT_THAT(err(), HasSubstr("--jobs must not hold a line break"));
  EXPECT_EQ(submit({"--config", config, "--only", "failed"}), 2);
  EXPECT_THAT(err(), HasSubstr("the nearest is 'fail'"));
  EXPECT_EQ(brigade({"status", (folder_ / "none").string()}), 2);
  EXPECT_THAT(err(), HasSubstr("holds no jobs"));
  EXPECT_FALSE(fs::exists(log()));
}

// A shell would only report "sbatch: not found".
TEST_F(JobsTest, AMachineWithoutSlurmIsNamed) {
  const std::string config = (configs_ / "a.json").string();
  EXPECT_EQ(
      exit_code(start_program(
          "env",
          {"PATH=/nowhere",
           kProgram,
           "submit",
           "--launcher",
           "slurm",
           "--jobs",
           jobs_.string(),
           "--config",
           config})),
      2);
  EXPECT_EQ(
      err(),
      "error: [submit] there is no sbatch in PATH; submit on a machine of the "
      "cluster, or see the batch script with --dry-run\n");
  EXPECT_FALSE(fs::exists(jobs_));
}

TEST_F(JobsTest, ANameWithASignOfTheShellOrOfSlurmIsTakenAsItIs) {
  jobs_ = folder_ / "it's 50% of $them";
  EXPECT_EQ(submit({"--config", (configs_ / "a.json").string()}), 0) << err();
  EXPECT_THAT(
      read_if_there(log()), HasSubstr((jobs_ / "a" / "job.sbatch").string()));
  EXPECT_THAT(
      read_if_there(jobs_ / "a" / "job.sbatch"),
      HasSubstr("it's 50%% of $them/a/output\""));
}

TEST_F(JobsTest, AnSbatchThatFailsIsNamed) {
  write_program("sbatch", "echo 'sbatch: invalid partition' >&2; exit 1");
  EXPECT_EQ(submit({"--config", (configs_ / "a.json").string()}), 6);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("sbatch: invalid partition"),
          HasSubstr("sbatch --parsable"),
          HasSubstr("failed")));
}

}  // namespace
}  // namespace brigade
