#include "brigade/jobs/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class JobStatusTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / "a" / name).parent_path());
    write_text_file(folder_ / "a" / name, text);
  }

  // The status of a job with this status file and output.
  JobStatus of(const std::string& status, const std::string& output = "")
      const {
    write("job.sbatch", "");
    write("status", status);
    write("output", output);
    return read_job(folder_ / "a").front();
  }

  const TemporaryFolder folder_;
};

TEST_F(JobStatusTest, AJobThatNeverStartedIsPending) {
  write("job.sbatch", "");
  const auto jobs = read_jobs(folder_);
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].name, "a");
  EXPECT_EQ(jobs[0].state, JobState::kPending);
  EXPECT_EQ(of("pending 17").state, JobState::kPending);
}

TEST_F(JobStatusTest, ARunningJobTellsItsLatestStep) {
  write(
      "run/metrics.jsonl",
      "{\"step\": 1, \"loss\": 9.5, \"tokens_per_second\": 10}\n"
      "{\"step\": 2, \"loss\": 8.5, \"tokens_per_second\": 20}\n{\"step\"");
  const JobStatus job = of("running 17");
  EXPECT_EQ(job.state, JobState::kRunning);
  EXPECT_EQ(job.job_id, "17");
  ASSERT_TRUE(job.progress);
  EXPECT_EQ(job.progress->step, 2);
  EXPECT_EQ(job.progress->loss, 8.5);
  EXPECT_EQ(job.progress->tokens_per_second, 20);
  EXPECT_THAT(
      describe_jobs({job}),
      AllOf(
          HasSubstr("a     running"),
          HasSubstr("8.5000"),
          HasSubstr("1 running")));
}

TEST_F(JobStatusTest, ALineThatIsStillBeingWrittenIsNotRead) {
  write(
      "run/metrics.jsonl",
      "{\"step\": 1, \"loss\": 9.5, \"tokens_per_second\": 10}\n"
      "{\"step\": 2, \"time_ms\": {\"data\": 1}, \"lo");
  EXPECT_EQ(of("running 17").progress->step, 1);
  write("run/metrics.jsonl", "{\"step\": 1, \"time_ms\": {}");
  EXPECT_FALSE(of("running 17").progress);
}

TEST_F(JobStatusTest, ALossThatIsNoNumberIsNotZeroAndADamagedLineIsNone) {
  write("run/metrics.jsonl", "{\"step\": 3, \"loss\": null}\n");
  EXPECT_TRUE(std::isnan(of("running 17").progress->loss));
  write("run/metrics.jsonl", "{\"step\": 3,, \"loss\"\n");
  EXPECT_FALSE(of("running 17").progress);
}

TEST_F(JobStatusTest, AJobThatSlurmPutBackIntoTheQueueIsPending) {
  for (const char* reason : {"PREEMPTION", "JOB REQUEUE"}) {
    EXPECT_EQ(
        of("running 17",
           std::string("slurmstepd: error: *** JOB 17 ON n CANCELLED AT T DUE "
                       "TO ") +
               reason + " ***")
            .state,
        JobState::kPending)
        << reason;
  }
}

TEST_F(JobStatusTest, TheOutputOfTheLatestStartSaysHowItEnded) {
  EXPECT_EQ(of("completed 17").state, JobState::kCompleted);
  EXPECT_EQ(
      of("running 17",
         "slurmstepd: error: *** JOB 17 ON n CANCELLED AT T DUE TO TIME LIMIT "
         "***")
          .state,
      JobState::kTimeout);
  EXPECT_EQ(
      of("running 17",
         "slurmstepd: error: *** JOB 17 ON n CANCELLED AT T DUE TO NODE "
         "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***")
          .state,
      JobState::kPending);
  // The job was started again afterwards.
  EXPECT_EQ(
      of("running 17",
         "*** JOB 17 ON n CANCELLED AT T DUE TO TIME LIMIT ***\n"
         "== brigade job 17, restart 1, on n\n")
          .state,
      JobState::kRunning);
  EXPECT_EQ(
      of("failed 137 17", "slurmstepd: error: Detected 1 oom-kill event(s)")
          .state,
      JobState::kOom);
  EXPECT_EQ(
      of("running 17", "*** JOB 17 ON n CANCELLED AT T ***\n").cause,
      "cancelled");
}

TEST_F(JobStatusTest, AFailureTellsItsFirstCauseAndNotTheLostPeers) {
  const JobStatus job =
      of("failed 4 17",
         "error: rank 9: DataError: of an earlier start\n"
         "== brigade job 17, restart 1, on n\n"
         "error: rank 0: CommError: rank 3 was lost\n"
         "error: rank 3: DataError: no dataset 'x'\n"
         "srun: error: node3: task 3: Exited with exit code 4\n");
  EXPECT_EQ(job.state, JobState::kFail);
  EXPECT_EQ(job.cause, "error: rank 3: DataError: no dataset 'x'");
  EXPECT_EQ(
      of("failed 3 17", "srun: error: x\nerror: rank 0: CommError: lost").cause,
      "error: rank 0: CommError: lost");
  EXPECT_EQ(of("failed 9 17").cause, "exit code 9");
}

TEST_F(JobStatusTest, TasksOfAnArrayAreJobsOfTheirOwn) {
  write("job.sbatch", "");
  write("status.0", "completed 20");
  write("status.1", "failed 2 21");
  write("output.1", "error: rank 0: ConfigError: bad seed");
  const auto jobs = read_jobs(folder_ / "a");
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].name, "a.0");
  EXPECT_EQ(jobs[1].name, "a.1");
  EXPECT_THAT(jobs[1].cause, HasSubstr("bad seed"));
  EXPECT_THAT(describe_jobs(jobs), HasSubstr("1 completed, 1 fail"));
}

TEST_F(JobStatusTest, TasksAreInTheOrderOfTheirNumbers) {
  write("job.sbatch", "");
  for (const int task : {10, 2, 1})
    write("status." + std::to_string(task), "completed 20");
  std::vector<std::string> tasks;
  for (const JobStatus& job : read_job(folder_ / "a"))
    tasks.push_back(job.task);
  EXPECT_EQ(tasks, (std::vector<std::string>{"1", "2", "10"}));
}

TEST_F(JobStatusTest, TasksThatAreSubmittedAgainWaitAndTheOthersStay) {
  write("job.sbatch", "");
  write("status.0", "completed 20");
  write("status.1", "failed 2 21");
  write("submitted", "77");
  set_pending(folder_ / "a", {{.name = "a.1", .task = "1"}});
  const auto jobs = read_job(folder_ / "a");
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].state, JobState::kCompleted);
  EXPECT_EQ(jobs[1].state, JobState::kPending);
  EXPECT_EQ(jobs[1].job_id, "77_1");

  // Task 1 still waits under its number when task 0 gets another.
  set_pending(folder_ / "a", {{.name = "a.0", .task = "0"}});
  write("submitted", "78");
  EXPECT_EQ(read_job(folder_ / "a")[0].job_id, "78_0");
  EXPECT_EQ(read_job(folder_ / "a")[1].job_id, "77_1");
  EXPECT_EQ(read_job(folder_ / "a")[1].state, JobState::kPending);
}

TEST_F(JobStatusTest, NamesAFolderOrStatusThatIsNoJob) {
  EXPECT_THAT(
      [&] { read_jobs(folder_); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr(folder_.path().string()), HasSubstr("holds no jobs"))));
  EXPECT_THAT(
      [&] { of("walking 17"); },
      ThrowsMessage<DataError>(HasSubstr("begins with 'walking'")));
  EXPECT_THAT(
      [&] { parse_job_state("failed"); },
      ThrowsMessage<ConfigError>(HasSubstr("the nearest is 'fail'")));
}

}  // namespace
}  // namespace brigade
