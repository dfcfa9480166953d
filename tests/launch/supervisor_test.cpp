// Real processes: /bin/sh as the rank's program, or this test itself.
#include "brigade/launch/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/launch/rank_process.h"
#include "brigade/launch/rank_report.h"
#include "brigade/launch/restarts.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(10);

// Looks again and again until the condition holds.
bool eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// A zombie has ended; its parent has just not waited for it yet.
bool is_running(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest() {
    // The supervisor's own folders go there, so that leftovers are seen.
    fs::create_directory(folder_ / "tmp");
    ::setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
    ::setenv("T", folder_.path().c_str(), 1);
    output_ = open_file("output");
    error_ = open_file("error");
  }
  ~SupervisorTest() override {
    ::unsetenv("TMPDIR");
    ::unsetenv("T");
  }

  Descriptor open_file(const std::string& name) const {
    return Descriptor(::open(
        (folder_ / name).c_str(),
        O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC,
        0600));
  }

  SupervisorOptions shell(int nproc, const std::string& script) const {
    return {
        .nproc = nproc,
        .command = {"/bin/sh", "-c", script},
        .output_descriptor = output_.get(),
        .error_descriptor = error_.get()};
  }

  // A test below as the ranks' program.
  SupervisorOptions program(int nproc, const std::string& test) const {
    auto options = shell(nproc, "");
    options.command = {
        "test",
        "--gtest_also_run_disabled_tests",
        "--gtest_filter=RankProgram.DISABLED_" + test};
    options.executable = "/proc/self/exe";
    return options;
  }

  // Runs the supervisor in a process of its own.
  pid_t in_background(const SupervisorOptions& options) const {
    const pid_t pid = ::fork();
    if (pid == 0)
      ::_exit(supervise(options).exit_code);
    return pid;
  }

  std::vector<std::string> lines(const std::string& name) const {
    std::vector<std::string> all;
    std::ifstream file(folder_ / name);
    for (std::string line; std::getline(file, line);)
      all.push_back(line);
    return all;
  }
  std::vector<pid_t> pids(size_t count) const {
    EXPECT_TRUE(eventually([&] { return lines("pids").size() == count; }));
    std::vector<pid_t> all;
    for (const std::string& line : lines("pids"))
      all.push_back(std::stoi(line));
    return all;
  }
  bool private_folders_are_gone() const {
    return fs::is_empty(folder_ / "tmp");
  }

  const TemporaryFolder folder_;
  Descriptor output_;
  Descriptor error_;
};

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST_F(SupervisorTest, RanksFindTorchrunsVariablesAndTheStore) {
  const auto result = supervise(shell(
      2,
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE; "
      "test -d \"${BRIGADE_STORE_FILE%/*}\"; echo $?; "
      "stat -c %a \"${BRIGADE_STORE_FILE%/*}\""));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.failures, IsEmpty());
  EXPECT_THAT(
      lines("output"),
      AllOf(
          Contains("[rank 0] 0 0 2 2"),
          Contains("[rank 1] 1 1 2 2"),
          Contains("[rank 0] 700"),
          Not(Contains("[rank 0] 1"))));
  EXPECT_TRUE(private_folders_are_gone());
}

TEST_F(SupervisorTest, CpuThreadsAreSharedOutUnlessTheUserSetThem) {
  auto options = shell(1024, "");
  options.nproc = 2;
  options.command = {
      "/bin/sh", "-c", "echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS"};
  // The suite itself runs with one thread.
  const char* variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
  std::vector<std::optional<std::string>> before;
  for (const char* name : variables) {
    before.push_back(process_environment()(name));
    ::unsetenv(name);
  }
  const int share =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2);
  supervise(options);
  ::setenv("OMP_NUM_THREADS", "3", 1);
  supervise(options);
  options.threads_per_rank = 5;
  supervise(options);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i])
      ::setenv(variables[i], before[i]->c_str(), 1);
    else
      ::unsetenv(variables[i]);
  }
  std::vector<std::string> of_rank_0;
  for (const std::string& line : lines("output")) {
    if (line.starts_with("[rank 0] "))
      of_rank_0.push_back(line.substr(9));
  }
  const std::string shared = std::to_string(share);
  EXPECT_THAT(of_rank_0, ElementsAre(shared + " " + shared, "3 3", "5 5"));
}

TEST_F(SupervisorTest, LinesOfManyRanksAreNeverTorn) {
  const auto result = supervise(shell(
      4,
      "i=0; while [ $i -lt 100 ]; do printf 'a%s' $RANK; printf 'b%s\\n' $i; "
      "echo e$i >&2; i=$((i+1)); done; printf unfinished"));
  EXPECT_EQ(result.exit_code, 0);
  std::multiset<std::string> expected;
  std::multiset<std::string> expected_errors;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string r = std::to_string(rank);
    for (int i = 0; i < 100; ++i) {
      expected.insert("[rank " + r + "] a" + r + "b" + std::to_string(i));
      expected_errors.insert("[rank " + r + "] e" + std::to_string(i));
    }
    expected.insert("[rank " + r + "] unfinished");
  }
  const auto output = lines("output");
  const auto error = lines("error");
  EXPECT_EQ(std::multiset<std::string>(output.begin(), output.end()), expected);
  EXPECT_EQ(
      std::multiset<std::string>(error.begin(), error.end()), expected_errors);
}

TEST_F(SupervisorTest, TheReportingRankWritesWithoutPrefix) {
  auto options = shell(2, "echo from $RANK");
  options.unprefixed_rank = 1;
  supervise(options);
  EXPECT_THAT(
      lines("output"),
      ::testing::UnorderedElementsAre("[rank 0] from 0", "from 1"));
}

TEST_F(SupervisorTest, TheFirstFailureGivesTheExitCode) {
  const auto result =
      supervise(shell(2, "if [ $RANK = 1 ]; then exit 5; fi; exec sleep 1000"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(
      describe_failures(result), ElementsAre("rank 1 exited with code 5"));
}

TEST_F(SupervisorTest, RanksThatIgnoreSigtermAreKilled) {
  EXPECT_LE(SupervisorOptions().kill_after, std::chrono::seconds(2));
  const auto result = supervise(shell(
      2,
      "if [ $RANK = 0 ]; then trap '' TERM; touch $T/ready; "
      "while :; do sleep 1000; done; fi; "
      "until [ -e $T/ready ]; do sleep 0.01; done; exit 4"));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(
      describe_failures(result), ElementsAre("rank 1 exited with code 4"));
}

// It would end by itself only after the test's own time.
TEST_F(SupervisorTest, ARankIsKilledOnceItHasWrittenWhatItDidLast) {
  auto options = program(2, "RecordsAndStays");
  options.kill_after = std::chrono::hours(1);
  const auto result = supervise(options);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(
      describe_failures(result),
      ElementsAre(StartsWith("rank 0 was killed by SIGKILL")));
}

TEST_F(SupervisorTest, ARankKilledByASignalIsNamedWithItsStep) {
  const auto result = supervise(program(2, "DiesAtStep37"));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(
      describe_failures(result),
      ElementsAre(StartsWith("rank 1 was killed by SIGKILL (9) at step 37")));
}

TEST_F(SupervisorTest, ARanksLastWordsAreItsReason) {
  const auto result = supervise(program(2, "FailsAtStep12"));
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(
      describe_failures(result),
      ElementsAre("rank 1 failed at step 12: NumericError: loss is nan"));
}

// Rank 0 ends first, but only because it lost rank 1.
TEST_F(SupervisorTest, ALostPeerIsNotTheCauseWhenAnotherRankFailedItself) {
  auto options = program(2, "LosesItsPeer");
  options.kill_after = std::chrono::hours(1);
  const auto result = supervise(options);
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(
      describe_failures(result),
      ElementsAre(
          "rank 0 failed at step 3: CommError: lost rank 1",
          "rank 1 failed at step 3: StorageError: disk full"));
}

TEST_F(SupervisorTest, EqualFailuresAreReportedOnce) {
  const auto result = supervise(program(3, "AllFailTheSameWay"));
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(describe_failures(result).size(), 1U);
  EXPECT_THAT(
      describe_failures(result)[0],
      HasSubstr("DataError: tokens.bin is empty"));
}

TEST_F(SupervisorTest, SignalsArePassedOnToEveryRank) {
  const pid_t supervisor = in_background(shell(
      2,
      "trap 'echo got USR1' USR1; trap 'echo got HUP' HUP; "
      "trap 'echo got TERM; exit 0' TERM; echo $$ >> $T/pids; "
      "while :; do sleep 0.01; done"));
  pids(2);
  for (const auto& [number, line] :
       {std::pair{SIGUSR1, "got USR1"}, std::pair{SIGHUP, "got HUP"}}) {
    ::kill(supervisor, number);
    EXPECT_TRUE(eventually([&, expected = std::string(line)] {
      const auto output = lines("output");
      const std::set<std::string> seen(output.begin(), output.end());
      return seen.contains("[rank 0] " + expected) &&
             seen.contains("[rank 1] " + expected);
    })) << line;
  }
  ::kill(supervisor, SIGTERM);
  const int status = wait_for(supervisor);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_THAT(
      lines("output"),
      AllOf(Contains("[rank 0] got TERM"), Contains("[rank 1] got TERM")));
}

// As one for a save that comes while libtorch is loaded.
TEST_F(SupervisorTest, ARequestDoesNotKillRanksThatDoNotTakeItYet) {
  const pid_t supervisor = in_background(shell(
      2,
      "trap 'echo got HUP' HUP; trap 'exit 0' TERM; echo $$ >> $T/pids; "
      "while [ ! -e $T/go ]; do sleep 0.01; done; "
      "trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.01; done"));
  pids(2);
  const auto both_say = [&](const std::string& line) {
    return eventually([&] {
      const auto output = lines("output");
      const std::set<std::string> seen(output.begin(), output.end());
      return seen.contains("[rank 0] " + line) &&
             seen.contains("[rank 1] " + line);
    });
  };
  ::kill(supervisor, SIGUSR1);
  ::kill(supervisor, SIGHUP);
  EXPECT_TRUE(both_say("got HUP"));
  std::ofstream(folder_ / "go").close();
  EXPECT_TRUE(both_say("ready"));
  ::kill(supervisor, SIGUSR1);
  EXPECT_TRUE(both_say("got USR1"));
  ::kill(supervisor, SIGTERM);
  const int status = wait_for(supervisor);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(SupervisorTest, RanksThatTheUserInterruptsMayTakeTheirTime) {
  // Rank 0 ends at once; rank 1 needs longer than the others would get.
  auto options = shell(
      2,
      "if [ $RANK = 1 ]; then trap 'sleep 0.3; touch $T/saved; exit 0' TERM; "
      "fi; echo $$ >> $T/pids; while :; do sleep 0.01; done");
  options.kill_after = std::chrono::milliseconds(50);
  const pid_t supervisor = in_background(options);
  pids(2);
  ::kill(supervisor, SIGTERM);
  const int status = wait_for(supervisor);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_TRUE(fs::exists(folder_ / "saved"));
}

// As SIGTERM during the save of ranks whose job's time is over.
TEST_F(SupervisorTest, RanksMayEndByAnotherRequestThanTheLatest) {
  const auto options = program(2, "EndsBecauseTimeIsOver");
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    const auto result = supervise(options);
    const bool is_as_asked = describe_failures(result).empty();
    ::_exit(is_as_asked ? result.exit_code : 1);
  }
  const auto pid_of = [&](int rank) {
    const fs::path file = folder_ / fmt::format("pid_{}", rank);
    EXPECT_TRUE(eventually([&] { return fs::exists(file); }));
    return std::stoi(read_text_file(file));
  };
  const fs::path first = fs::path("/proc") / std::to_string(pid_of(0));
  pid_of(1);
  ::kill(supervisor, SIGTERM);
  EXPECT_TRUE(eventually([&] { return !fs::exists(first); }));
  ::kill(supervisor, SIGHUP);
  EXPECT_EQ(WEXITSTATUS(wait_for(supervisor)), 128 + kTimeIsOver);
}

TEST_F(SupervisorTest, KillingTheSupervisorLeavesNoOrphan) {
  // Orphans of the background process become ours, so that we see them end.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Each rank starts a process of its own, and ignores what can be ignored.
  const pid_t supervisor = in_background(shell(
      3,
      "trap '' TERM INT HUP; sleep 1000 & echo $! >> $T/pids; "
      "echo $$ >> $T/pids; wait"));
  const auto all = pids(6);
  for (pid_t pid : all)
    EXPECT_TRUE(is_running(pid));
  ::kill(supervisor, SIGKILL);
  wait_for(supervisor);
  for (pid_t pid : all)
    EXPECT_TRUE(eventually([&] { return !is_running(pid); })) << pid;
  EXPECT_TRUE(eventually([&] { return private_folders_are_gone(); }));
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  // A supervisor that the kernel killed can say nothing itself.
  EXPECT_THAT(
      read_text_file(folder_ / "error"),
      HasSubstr(fmt::format(
          "error: the supervisor of the ranks (process {}) was killed, perhaps "
          "by the kernel because memory ran out",
          supervisor)));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// The kernel might otherwise choose the supervisor, and nobody would report it.
TEST_F(SupervisorTest, ARankIsKilledBeforeItsSupervisorWhenMemoryRunsOut) {
  int own = 0;
  if (!(std::ifstream("/proc/self/oom_score_adj") >> own))
    GTEST_SKIP() << "this kernel has no such score";
  supervise(shell(1, "cat /proc/self/oom_score_adj > $T/score"));
  int of_rank = 0;
  std::ifstream(folder_ / "score") >> of_rank;
  EXPECT_EQ(of_rank, std::min(own + 100, 1000));
}

TEST_F(SupervisorTest, ProcessesThatARankLeavesEndWithTheRun) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto result =
      supervise(shell(1, "sleep 1000 & echo $! >> $T/pids; exit 0"));
  EXPECT_EQ(result.exit_code, 0);
  const pid_t left = pids(1)[0];
  EXPECT_TRUE(eventually([&] { return !is_running(left); }));
  ::waitpid(left, nullptr, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// Whether the pipe, which nobody reads, takes no more.
bool is_full(const Pipe& pipe) {
  pollfd writable{.fd = pipe.write_end.get(), .events = POLLOUT, .revents = 0};
  return ::poll(&writable, 1, 0) == 0;
}

TEST_F(SupervisorTest, AFailureIsSeenAlthoughNobodyReadsTheOutput) {
  const Pipe pipe = make_pipe();
  auto options = shell(
      2,
      "[ $RANK = 0 ] && exec yes; until [ -e $T/full ]; do sleep 0.01; done; "
      "exit 5");
  options.output_descriptor = pipe.write_end.get();
  std::thread watcher([&] {
    EXPECT_TRUE(eventually([&] { return is_full(pipe); }));
    write_text_file(folder_ / "full", "");
  });
  const SupervisorResult result = supervise(options);
  watcher.join();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_GT(result.dropped_bytes, 0);
  EXPECT_THAT(
      describe_failures(result), ElementsAre("rank 1 exited with code 5"));
}

TEST_F(SupervisorTest, ASignalIsPassedOnAlthoughNobodyReadsTheOutput) {
  const Pipe pipe = make_pipe();
  auto options = shell(2, "exec yes");
  options.output_descriptor = pipe.write_end.get();
  const pid_t pid = in_background(options);
  EXPECT_TRUE(eventually([&] { return is_full(pipe); }));
  ::kill(pid, SIGTERM);
  int status = 0;
  EXPECT_TRUE(
      eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }));
  EXPECT_EQ(WEXITSTATUS(status), 143);
}

// A reader that takes its time gets everything.
TEST_F(SupervisorTest, ASlowReaderLosesNothingOfARunThatGoesWell) {
  Pipe pipe = make_pipe();
  auto options = shell(2, "seq 1 60000");
  options.output_descriptor = pipe.write_end.get();
  options.prefixes_lines = false;
  const pid_t pid = in_background(options);
  pipe.write_end.close();
  size_t bytes = 0;
  char piece[512];
  for (ssize_t count = 0;
       (count = ::read(pipe.read_end.get(), piece, sizeof(piece))) > 0;)
    bytes += static_cast<size_t>(count);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes, 2 * (9 * 2 + 90 * 3 + 900 * 4 + 9000 * 5 + 50001 * 6));
}

TEST_F(SupervisorTest, ANoteFollowsTheRanksNumber) {
  auto options = shell(2, "[ $RANK = 1 ] && exit 5; exec sleep 1000");
  options.rank_notes = {"dp 0", "dp 1"};
  EXPECT_THAT(
      describe_failures(supervise(options)),
      ElementsAre("rank 1 (dp 1) exited with code 5"));
}

TEST_F(SupervisorTest, RanksAreRestartedUntilTheyEndWell) {
  std::vector<std::string> said;
  const SupervisorResult result = supervise_with_restarts(
      shell(
          2,
          "echo $BRIGADE_RESTART_COUNT >> $T/counts-$RANK; "
          "[ $BRIGADE_RESTART_COUNT = 2 ] && exit 0; "
          "[ $RANK = 1 ] && exit 5; exec sleep 1000"),
      {.limits = {.max_restarts = 3},
       .prepare = [](const SupervisorResult&,
                     SupervisorOptions&) { return "from here"; },
       .on_message = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(lines("counts-1"), ElementsAre("0", "1", "2"));
  EXPECT_THAT(
      said,
      ElementsAre(
          "error: rank 1 exited with code 5",
          "restart 1 of 3, from here",
          "error: rank 1 exited with code 5",
          "restart 2 of 3, from here"));
}

TEST_F(SupervisorTest, TheEndThatASignalAskedForIsNoReasonToRestart) {
  auto options = shell(1, "echo > $T/started; exec sleep 1000");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(supervise_with_restarts(options, {.limits = {.max_restarts = 3}})
                .exit_code);
  }
  EXPECT_TRUE(eventually([&] { return fs::exists(folder_ / "started"); }));
  ::kill(pid, SIGTERM);
  int status = 0;
  EXPECT_TRUE(
      eventually([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }));
  EXPECT_EQ(WEXITSTATUS(status), 143);
}

TEST_F(SupervisorTest, ASignalWhileTheOutputWaitsForItsReaderAsksForTheEnd) {
  const Pipe pipe = make_pipe();
  auto options = shell(1, "echo $$ > $T/pids; seq 1 30000");
  options.output_descriptor = pipe.write_end.get();
  const pid_t pid = ::fork();
  if (pid == 0)
    ::_exit(supervise(options).was_asked_to_end ? 0 : 1);
  const fs::path rank = fs::path("/proc") / std::to_string(pids(1)[0]);
  EXPECT_TRUE(eventually([&] { return !fs::exists(rank); }));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(WEXITSTATUS(wait_for(pid)), 0);
}

TEST_F(SupervisorTest, ASignalBetweenTwoAttemptsIsNoReasonToRestart) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    fs::remove(folder_ / "counts");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::signal(number, SIG_DFL);  // a shell's jobs ignore some
      ::_exit(supervise_with_restarts(
                  shell(1, "echo >> $T/counts; exit 5"),
                  {.limits = {.max_restarts = 2},
                   .explain =
                       [&](const SupervisorResult&) {
                         ::raise(number);
                         return "";
                       }})
                  .exit_code);
    }
    const int status = wait_for(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5) << number;
    // A request for recordings asks nothing of ranks that have ended.
    EXPECT_EQ(lines("counts").size(), number == SIGQUIT ? 3U : 1U) << number;
  }
}

// As one for recordings that comes while libtorch is loaded.
TEST_F(SupervisorTest, SigquitEndsOtherProgramsAndNoRankThatStillStarts) {
  for (const bool records : {false, true}) {
    fs::remove(folder_ / "pids");
    auto options = shell(
        1,
        "trap 'echo got HUP > $T/hup' HUP; echo $$ > $T/pids; "
        "until [ -e $T/hup ]; do sleep 0.01; done; exit 0");
    options.records_on_quit = records;
    const pid_t supervisor = ::fork();
    if (supervisor == 0) {
      ::signal(SIGQUIT, SIG_DFL);  // a shell's jobs ignore it
      ::_exit(supervise(options).exit_code);
    }
    pids(1);
    ::kill(supervisor, SIGQUIT);
    if (records)
      ::kill(supervisor, SIGHUP);
    EXPECT_EQ(WEXITSTATUS(wait_for(supervisor)), records ? 0 : 128 + SIGQUIT);
  }
}

TEST_F(SupervisorTest, AProgramThatIsNotThereIsNamed) {
  auto options = shell(2, "");
  options.command = {"no_such_program"};
  EXPECT_THAT(
      [&] { supervise(options); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("'no_such_program'"), HasSubstr("No such file"))));
  EXPECT_TRUE(private_folders_are_gone());
}

// The programs of ranks: run as tests of another process by those above.
class RankProgram : public ::testing::Test {
 protected:
  int rank_ = std::atoi(std::getenv("RANK") ? std::getenv("RANK") : "0");
  RankReport report_{read_environment(process_environment()).report_file};
  [[noreturn]] void wait_for_ever() {
    while (true)
      ::pause();
  }
};

TEST_F(RankProgram, DISABLED_DiesAtStep37) {
  report_.set_step(36 + rank_);
  if (rank_ == 1)
    ::raise(SIGKILL);
  wait_for_ever();
}

TEST_F(RankProgram, DISABLED_FailsAtStep12) {
  report_.set_step(12);
  if (rank_ == 1) {
    report_.set_failure("NumericError: loss is nan");
    ::_exit(5);
  }
  wait_for_ever();
}

TEST_F(RankProgram, DISABLED_LosesItsPeer) {
  report_.set_step(3);
  const fs::path folder = std::getenv("T");
  const fs::path sign = folder / "rank_0_ends";
  const fs::path ready = folder / "rank_1_is_ready";
  if (rank_ == 0) {
    while (!fs::exists(ready))
      ::usleep(1000);
    report_.set_failure("CommError: lost rank 1");
    write_text_file(sign, std::to_string(::getpid()));
    ::_exit(3);
  }
  // The others may be ended before this rank has come to its own end.
  sigset_t asked;
  ::sigemptyset(&asked);
  ::sigaddset(&asked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &asked, nullptr);
  write_text_file(ready, "");
  while (!fs::exists(sign) || is_running(std::stoi(read_text_file(sign))))
    ::usleep(1000);
  report_.set_failure("StorageError: disk full");
  ::_exit(6);
}

// Rank 1 lives on without its peer until it is killed, having written what it
// did last.
TEST_F(RankProgram, DISABLED_RecordsAndStays) {
  report_.set_handles_quit();
  const fs::path ready = fs::path(std::getenv("T")) / "rank_1_is_ready";
  if (rank_ == 0) {
    while (!fs::exists(ready))
      ::usleep(1000);
    ::raise(SIGKILL);
  }
  sigset_t asked;
  ::sigemptyset(&asked);
  ::sigaddset(&asked, SIGQUIT);
  ::sigaddset(&asked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &asked, nullptr);
  write_text_file(ready, "");
  int number = 0;
  do
    ::sigwait(&asked, &number);
  while (number != SIGQUIT);
  report_.count_recording();
  wait_for_ever();
}

// Rank 0 at SIGTERM, rank 1 at SIGHUP; SIGQUIT would say that rank 0 failed.
TEST_F(RankProgram, DISABLED_EndsBecauseTimeIsOver) {
  report_.set_handles_quit();
  sigset_t asked;
  ::sigemptyset(&asked);
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT})
    ::sigaddset(&asked, number);
  ::sigprocmask(SIG_BLOCK, &asked, nullptr);
  write_text_file(
      fs::path(std::getenv("T")) / fmt::format("pid_{}", rank_),
      std::to_string(::getpid()));
  int number = 0;
  do
    ::sigwait(&asked, &number);
  while (number == SIGTERM && rank_ == 1);
  sigset_t pending;
  ::sigpending(&pending);
  if (number == SIGQUIT || ::sigismember(&pending, SIGQUIT) == 1)
    report_.set_failure("a recording was asked for");
  ::_exit(128 + kTimeIsOver);
}

TEST_F(RankProgram, DISABLED_AllFailTheSameWay) {
  report_.set_failure("DataError: tokens.bin is empty");
  ::_exit(4);
}

TEST(RankReport, StaysReadableAfterItsWriterIsGone) {
  const TemporaryFolder folder;
  RankReport reader(folder / "report");
  EXPECT_EQ(reader.step(), -1);
  EXPECT_EQ(reader.failure(), "");
  {
    RankReport writer(folder / "report");
    writer.set_step(7);
    writer.set_failure(std::string(20000, 'x'));
    writer.set_failure("a second one");
  }
  EXPECT_EQ(reader.step(), 7);
  EXPECT_EQ(reader.failure(), std::string(16384, 'x'));
  EXPECT_GT(reader.failed_ns(), 0);
}

TEST(RankReport, WithoutASupervisorItIsOfThisProcessAlone) {
  RankReport report{fs::path()};
  EXPECT_FALSE(report.is_read_by_supervisor());
  report.set_step(7);
  EXPECT_EQ(report.step(), 7);
  EXPECT_EQ(RankReport(fs::path()).step(), -1);
}

}  // namespace
}  // namespace brigade
