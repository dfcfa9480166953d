// Ranks that are out of step: with distributed.check_collectives every rank
// reports at once what each launched, instead of a wrong sum or a timeout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "brigade/base/error.h"
#include "brigade/comm/world.h"
#include "program_faults.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct OutOfStepCase {
  std::string name;
  std::function<void(Communicator& world)> work;
  std::string of_rank_0;
  std::string of_rank_1;
};

void all_reduce(Communicator& world, int64_t numel, torch::Dtype dtype) {
  auto tensor = torch::ones({numel}, dtype);
  world.all_reduce(tensor)->wait();
}

std::vector<OutOfStepCase> cases() {
  return {
      {"skipped",
       [](Communicator& world) {
         if (world.rank() == 0)
           all_reduce(world, 8, torch::kFloat);
         all_reduce(world, 4, torch::kFloat);
       },
       "rank 0: all_reduce #1 of 8 x Float",
       "rank 1: all_reduce #1 of 4 x Float"},
      {"other_op",
       [](Communicator& world) {
         auto tensor = torch::ones({8});
         if (world.rank() == 0)
           world.all_reduce(tensor)->wait();
         else
           world.broadcast(tensor, 0)->wait();
       },
       "rank 0: all_reduce #1 of 8 x Float",
       "rank 1: broadcast #1 of 8 x Float"},
      {"size",
       [](Communicator& world) {
         all_reduce(world, 8 - world.rank(), torch::kFloat);
       },
       "rank 0: all_reduce #1 of 8 x Float",
       "rank 1: all_reduce #1 of 7 x Float"},
      {"dtype_of_equal_bytes",
       [](Communicator& world) {
         all_reduce(world, 8, world.rank() == 0 ? torch::kFloat : torch::kInt);
       },
       "rank 0: all_reduce #1 of 8 x Float",
       "rank 1: all_reduce #1 of 8 x Int"}};
}

class OutOfStep : public ::testing::TestWithParam<OutOfStepCase> {};

TEST_P(OutOfStep, EveryRankSaysAtOnceWhatEachLaunched) {
  testing::run_ranks(
      2,
      [](CommunicatorPtr world) {
        all_reduce(*world, 2, torch::kFloat);
        EXPECT_THAT(
            [&] { GetParam().work(*world); },
            ThrowsMessage<CommError>(AllOf(
                HasSubstr("group 'world'"),
                HasSubstr(GetParam().of_rank_0),
                HasSubstr(GetParam().of_rank_1))))
            << "rank " << world->rank();
      },
      {.timeout = testing::kNever});
}

constexpr const char* kCaseVariable = "BRIGADE_TEST_OUT_OF_STEP";
constexpr const char* kRankTest = "OutOfStepRank.DISABLED_IsOneOfTwoProcesses";

// The process that the next test starts twice.
TEST(OutOfStepRank, DISABLED_IsOneOfTwoProcesses) {
  const char* name = ::getenv(kCaseVariable);
  ASSERT_NE(name, nullptr) << "started by the test of real processes alone";
  for (const OutOfStepCase& each : cases()) {
    if (each.name != name)
      continue;
    try {
      const World world = init_from_environment(
          {.timeout = testing::kNever, .check_collectives = true});
      all_reduce(*world.data_parallel(), 2, torch::kFloat);
      each.work(*world.data_parallel());
      ::_exit(0);
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(static_cast<int>(error.code()));
    }
  }
  FAIL() << "no case " << name;
}

TEST_P(OutOfStep, EndsRealProcesses) {
  testing::StartedProgram program(
      testing::program_path(),
      {"run",
       "-n",
       "2",
       "--",
       std::filesystem::read_symlink("/proc/self/exe").string(),
       "--gtest_also_run_disabled_tests",
       std::string("--gtest_filter=") + kRankTest},
      {{kCaseVariable, GetParam().name}});
  const pid_t supervisor = program.pid();
  const testing::ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kComm));
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr(GetParam().of_rank_0), HasSubstr(GetParam().of_rank_1)));
  testing::expect_no_rank_of(supervisor, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OutOfStep,
    ::testing::ValuesIn(cases()),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
