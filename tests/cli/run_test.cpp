// brigade run, and what all commands share, run as users start them.
// tests/launch tests the supervisor's own behaviour; here it runs in a process
// with the threads of libtorch and OpenBLAS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RunTest : public ProgramTest {};

TEST_F(RunTest, VersionAndHelpGoToStandardOutput) {
  EXPECT_EQ(exit_code(start({"--version"})), 0);
  EXPECT_THAT(out(), StartsWith("brigade "));
  EXPECT_EQ(exit_code(start({"run", "--help"})), 0);
  // CLI11 2.5 shows a default as "[1]", older ones as "=1".
  EXPECT_THAT(
      out(),
      AllOf(HasSubstr("--nproc"), AnyOf(HasSubstr("=1"), HasSubstr("[1]"))));
  EXPECT_EQ(err(), "");
}

// tests/consumer/test_install.sh has the folder of an installed program.
TEST_F(RunTest, CmakeDirOfABuildSaysThatNothingIsInstalled) {
  EXPECT_EQ(exit_code(start({"--cmake-dir"})), 2);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("the C++ library is not installed beside this program"),
          HasSubstr("/lib/cmake/brigade' has no brigade-config.cmake"),
          HasSubstr("libbrigade-dev")));
}

TEST_F(RunTest, AWrongCommandLineIsExitCode2AndOneMessage) {
  struct Case {
    std::vector<std::string> arguments;
    const char* expected;
  };
  const Case cases[] = {
      {{}, "see brigade --help"},
      {{"rnu"}, "unknown command 'rnu'; the nearest is 'run'"},
      {{"convert"}, "unknown command 'convert'; the nearest is 'export'"},
      {{"run", "-n", "2"}, "no program is given"},
      {{"run", "-n", "0", "--", "true"},
       "--nproc: expected a whole number from 1 to 4096, not '0'"},
      {{"run", "--n", "2"}, "brigade run has no option --n"},
      {{"run", "--nprc", "2"}, "the nearest is --nproc"},
      {{"run", "--threads", "all", "--", "true"}, "not 'all'"},
      {{"run", "-n", "2", "--", "no_such_program"}, "'no_such_program'"},
  };
  for (const Case& test : cases) {
    fs::remove(folder_ / "err");
    EXPECT_EQ(exit_code(start(test.arguments)), 2) << test.expected;
    EXPECT_THAT(err(), AllOf(StartsWith("error: "), HasSubstr(test.expected)));
  }
}

// Checks the program without libtorch and the one with it.
TEST_F(RunTest, APathThatTheSystemRefusesIsNamedInPlainWords) {
  const std::string path(300, 'x');
  for (const char* command : {"report", "inspect"}) {
    fs::remove(folder_ / "err");
    EXPECT_EQ(exit_code(start({command, path})), 6) << command;
    EXPECT_THAT(err(), StartsWith("error: cannot use '"));
    EXPECT_THAT(err(), HasSubstr(path));
    EXPECT_THAT(err(), EndsWith("': File name too long\n"));
  }
}

TEST_F(RunTest, RunGivesTheProgramItsArgumentsAndItsRank) {
  EXPECT_EQ(
      exit_code(start(
          {"run",
           "-n",
           "2",
           "--",
           "sh",
           "-c",
           "echo $RANK of $WORLD_SIZE \"$@\"",
           "sh",
           "--flag",
           "a b"})),
      0);
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("[rank 0] 0 of 2 --flag a b\n"),
          HasSubstr("[rank 1] 1 of 2 --flag a b\n")));
}

TEST_F(RunTest, TheFirstFailureIsPrintedLastAndGivesTheExitCode) {
  EXPECT_EQ(
      exit_code(start(
          {"run",
           "-n",
           "2",
           "--",
           "sh",
           "-c",
           "if [ $RANK = 1 ]; then echo sorry >&2; exit 9; fi; exec sleep "
           "1000"})),
      9);
  EXPECT_EQ(err(), "[rank 1] sorry\nerror: rank 1 exited with code 9\n");
  EXPECT_TRUE(fs::is_empty(folder_ / "tmp"));
}

// A signal to a process goes to any of its threads that does not block it, and
// libraries start threads before main().
TEST_F(RunTest, SignalsReachTheRanksAlthoughLibrariesHaveThreads) {
  const pid_t pid = start(
      {"run",
       "-n",
       "2",
       "--",
       "sh",
       "-c",
       "trap 'echo one >> $T/usr1' USR1; trap 'exit 0' TERM; "
       "echo $$ >> $T/pids; while :; do sleep 0.02; done"});
  const auto count = [&](const char* name) {
    const std::string text = read_if_there(folder_ / name);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_TRUE(eventually([&] { return count("pids") == 2; }));
  ::kill(pid, SIGUSR1);
  EXPECT_TRUE(eventually([&] { return count("usr1") == 2; }));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(exit_code(pid), 0);
}

TEST_F(RunTest, KillingTheProgramWith9LeavesNothing) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t pid = start(
      {"run",
       "-n",
       "2",
       "--",
       "sh",
       "-c",
       "sleep 1000 & echo $! >> $T/pids; echo $$ >> $T/pids; wait"});
  std::vector<pid_t> all;
  EXPECT_TRUE(eventually([&] {
    all.clear();
    std::ifstream file(folder_ / "pids");
    for (pid_t rank = 0; file >> rank;)
      all.push_back(rank);
    return all.size() == 4;
  }));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(exit_code(pid), 128 + SIGKILL);
  for (pid_t rank : all)
    EXPECT_TRUE(eventually([&] { return !is_running(rank); })) << rank;
  EXPECT_TRUE(eventually([&] { return fs::is_empty(folder_ / "tmp"); }));
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace brigade
