#include "brigade/jobs/batch_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

SlurmJob job() {
  return {
      .name = "quickstart",
      .folder = "/jobs/quickstart",
      .program = "/bin/brigade",
      .working_folder = "/home/me",
      .nodes = 2,
      .ranks_per_node = 4};
}

TEST(SlurmBatchScript, StartsAllRanksContinuesAndGetsNoticeOfTheTimeLimit) {
  EXPECT_THAT(
      slurm_batch_script(job()),
      AllOf(
          StartsWith("#!/bin/bash\n"),
          HasSubstr("#SBATCH --nodes=2\n#SBATCH --ntasks=8\n"
                    "#SBATCH --ntasks-per-node=4\n"),
          HasSubstr("#SBATCH --chdir=/home/me\n"),
          HasSubstr("#SBATCH --requeue\n#SBATCH --signal=B:USR1@120\n"),
          HasSubstr("srun -n 8 --distribution=block"),
          HasSubstr("logging.run_dir=\"$job/run$task\" \\\n"
                    "  checkpoint.load_path=auto"),
          HasSubstr("job='/jobs/quickstart'")));
}

TEST(SlurmBatchScript, NamesOnlyWhatWasAskedFor) {
  for (const char* name :
       {"--gpus",
        "--cpus",
        "--time",
        "--partition",
        "--account",
        "--qos",
        "--array",
        "--dependency"})
    EXPECT_THAT(
        slurm_batch_script(job()),
        Not(HasSubstr(std::string("#SBATCH ") + name)));
  SlurmJob all = job();
  all.gpus_per_node = 4;
  all.cpus_per_rank = 7;
  all.time = "01:00:00";
  all.partition = "long";
  all.account = "us";
  all.qos = "high";
  all.array = "0-3";
  all.dependency = "afterok:12";
  all.overrides = {"training.seed=%a", "logging.run_name=it's"};
  EXPECT_THAT(
      slurm_batch_script(all),
      AllOf(
          HasSubstr("#SBATCH --cpus-per-task=7\n#SBATCH --gpus-per-node=4\n"
                    "#SBATCH --time=01:00:00\n#SBATCH --partition=long\n"
                    "#SBATCH --account=us\n#SBATCH --qos=high\n"
                    "#SBATCH --array=0-3\n#SBATCH --dependency=afterok:12\n"),
          HasSubstr("#SBATCH --output=/jobs/quickstart/output.%a\n"),
          HasSubstr("'training.seed='\"$SLURM_ARRAY_TASK_ID\"''"),
          HasSubstr("'logging.run_name=it'\\''s'")));
}

TEST(SlurmBatchScript, ATemplateKeepsItsTextAroundTheParts) {
  EXPECT_THAT(
      slurm_batch_script(job(), "a\n{DIRECTIVES}\nb {FOLDER}\n{COMMAND}\nc\n"),
      AllOf(
          StartsWith("a\n#SBATCH --job-name=quickstart\n"),
          HasSubstr("b '/jobs/quickstart'\nsrun -n 8"),
          ::testing::EndsWith("auto\nc\n")));
  EXPECT_THAT(
      [&] { slurm_batch_script(job(), "{DIRECTIVES}"); },
      ThrowsMessage<ConfigError>(HasSubstr("the template has no {COMMAND}")));
}

// Slurm replaces patterns such as %x in the name of an output file.
TEST(SlurmBatchScript, APercentSignStaysOne) {
  SlurmJob percent = job();
  percent.folder = "/50%a of jobs";
  percent.overrides = {"dataset.name=/data/50%a"};
  EXPECT_THAT(
      slurm_batch_script(percent),
      AllOf(
          HasSubstr("#SBATCH --output=\"/50%%a of jobs/output\"\n"),
          HasSubstr("job='/50%a of jobs'\n"),
          HasSubstr("'dataset.name=/data/50%a'")));
  percent.array = "0-3";
  percent.overrides = {"dataset.name=/data/50%%a-%a"};
  EXPECT_THAT(
      slurm_batch_script(percent),
      AllOf(
          HasSubstr("#SBATCH --output=\"/50%%a of jobs/output.%a\"\n"),
          HasSubstr("'dataset.name=/data/50%a-'\"$SLURM_ARRAY_TASK_ID\"''")));
}

TEST(SlurmBatchScript, AFolderWithBlanksIsOneWord) {
  SlurmJob blanks = job();
  blanks.name = "two words";
  blanks.folder = "/my jobs/a \"b\"";
  EXPECT_THAT(
      slurm_batch_script(blanks),
      AllOf(
          HasSubstr("#SBATCH --job-name=\"two words\"\n"),
          HasSubstr("#SBATCH --output=\"/my jobs/a \\\"b\\\"/output\"\n"),
          HasSubstr("#SBATCH --chdir=/home/me\n")));
}

TEST(SlurmBatchScript, AValueWithALineBreakIsRefused) {
  SlurmJob bad = job();
  bad.account = "us\n#SBATCH --nodes=100";
  EXPECT_THROW(slurm_batch_script(bad), ConfigError);
}

// The script with an srun that ends with a code, and a scontrol that does.
class RunBatchScript : public ::testing::Test {
 protected:
  RunBatchScript() {
    fs::create_directories(folder_ / "bin");
    job_.folder = folder_.path();
    job_.overrides = {"training.seed=7"};
    write_program("scontrol", "echo \"$@\" >>" + path("requeued"));
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  void write_program(const std::string& name, const std::string& text) const {
    const fs::path program = folder_ / "bin" / name;
    write_text_file(program, "#!/bin/bash\n" + text + "\n");
    fs::permissions(program, fs::perms::owner_all);
  }
  // Returns the status file; the words of srun are in the file "srun".
  std::string run(const std::string& srun) const {
    fs::remove(path("requeued"));
    write_program(
        "srun", "printf '%s\n' \"$@\" >" + path("srun") + "; " + srun);
    write_text_file(path("job.sbatch"), slurm_batch_script(job_));
    const std::string command = "PATH=" + path("bin") +
                                ":$PATH SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n "
                                "SCRIPT=$$ exec bash " +
                                path("job.sbatch") + " >/dev/null 2>&1";
    EXPECT_NE(std::system(command.c_str()), -1);
    return read_text_file(path("status"));
  }
  bool is_requeued() const {
    return fs::exists(path("requeued")) &&
           read_text_file(path("requeued")) == "requeue 77\n";
  }
  TemporaryFolder folder_;
  SlurmJob job_ = job();
};

TEST_F(RunBatchScript, OneThatStoppedForItsTimeGoesBackIntoTheQueue) {
  EXPECT_EQ(run("exit 160"), "pending 77\n");
  EXPECT_TRUE(is_requeued());
  // At the notice of the limit, which comes to the script: SIGUSR1 is seen to
  // have come by what its trap calls.
  write_program("scancel", "touch " + path("heard"));
  EXPECT_EQ(
      run("kill -USR1 $SCRIPT; until [ -e " + path("heard") +
          " ]; do sleep 0.01; done; exit 143"),
      "pending 77\n");
  EXPECT_TRUE(is_requeued());
}

TEST_F(RunBatchScript, OtherEndsAreTold) {
  EXPECT_EQ(run("exit 0"), "completed 77\n");
  // As scancel --signal=TERM asks for.
  EXPECT_EQ(run("exit 143"), "failed 143 77\n");
  EXPECT_FALSE(is_requeued());
  write_program("scontrol", "exit 1");
  EXPECT_EQ(run("exit 160"), "failed 160 77\n");
}

TEST_F(RunBatchScript, ANamedCheckpointIsContinuedUntilTheJobHasItsOwn) {
  const auto words = [&] {
    run("exit 0");
    return read_text_file(path("srun"));
  };
  const std::string own = "\ncheckpoint.load_path=auto\n";
  EXPECT_THAT(words(), AllOf(HasSubstr(own), HasSubstr("\ntraining.seed=7\n")));
  const std::string plain = slurm_batch_script(job_);
  job_.load_path = "auto";
  EXPECT_EQ(slurm_batch_script(job_), plain);
  job_.load_path = "it's 50% a base";
  const std::string named = "\ncheckpoint.load_path=it's 50% a base\n";
  EXPECT_THAT(words(), AllOf(HasSubstr(named), Not(HasSubstr(own))));
  job_.overrides = {"checkpoint.load_path=other"};
  EXPECT_THAT(
      words(),
      AllOf(
          HasSubstr("\ncheckpoint.load_path=other\n"), Not(HasSubstr(named))));
  fs::create_directories(folder_ / "run" / "checkpoints" / "latest");
  EXPECT_THAT(words(), AllOf(HasSubstr(own), Not(HasSubstr("other"))));
}

}  // namespace
}  // namespace brigade
