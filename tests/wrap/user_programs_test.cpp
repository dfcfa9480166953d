// Programs as users write them train as in plain torch on one process that has
// the batches of all ranks, in every hand-over and sharding, or are refused by
// name where they say so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <tuple>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/wrap/user_programs.h"

namespace brigade {
namespace {

using testing::run_ranks;
using testing::Setting;
using testing::UserProgram;
using testing::UserRun;

class UserPrograms
    : public ::testing::TestWithParam<std::tuple<UserProgram, Setting>> {};

TEST_P(UserPrograms, TrainAsInPlainTorchOrAreRefused) {
  const auto& [program, setting] = GetParam();
  for (const int ranks : {1, 3}) {
    UserRun plain(ranks, nullptr, nullptr);
    program.run(plain);
    const std::string refusal =
        program.refusal ? program.refusal(setting) : std::string();
    std::mutex mutex;
    run_ranks(
        ranks,
        [&, &program = program, &setting = setting](
            const CommunicatorPtr& world) {
          UserRun run(ranks, &setting, world);
          const std::string message =
              message_of<Error>([&] { program.run(run); });
          const std::lock_guard lock(mutex);
          EXPECT_THAT(message, ::testing::HasSubstr(refusal)) << ranks;
          if (!refusal.empty())
            return;
          EXPECT_EQ(message, "") << ranks;
          ASSERT_EQ(run.noted().size(), plain.noted().size());
          for (size_t i = 0; i < run.noted().size(); ++i) {
            const double off =
                (run.noted()[i] - plain.noted()[i]).abs().max().item<double>();
            ASSERT_LT(off, 2e-5) << ranks << " ranks, value " << i;
          }
        });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    UserPrograms,
    ::testing::Combine(
        ::testing::ValuesIn(testing::all_user_programs()),
        ::testing::ValuesIn(testing::all_settings())),
    [](const auto& each) {
      return std::get<0>(each.param).name + "_" + std::get<1>(each.param).name;
    });

}  // namespace
}  // namespace brigade
