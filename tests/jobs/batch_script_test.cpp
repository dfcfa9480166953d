#include "brigade/jobs/batch_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

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
          HasSubstr("logging.run_dir=\"$job/run$task\" "
                    "checkpoint.load_path=auto"),
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

}  // namespace
}  // namespace brigade
