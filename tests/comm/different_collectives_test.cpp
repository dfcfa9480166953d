// Ranks that launch different collectives, without the check of collectives: an
// error that names what each launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/communicator.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct ComposedCase {
  std::string name;       // as the test is called
  std::string operation;  // as an error names it
  std::function<WorkPtr(Communicator& world)> launch;
};

WorkPtr launch_gather(Communicator& world, int64_t numel) {
  return world.all_gather(
      torch::zeros({numel * world.size()}), torch::ones({numel}));
}

std::vector<ComposedCase> composed_cases() {
  return {
      {"Gather",
       "all_gather #1 of 64 x Float",
       [](Communicator& world) { return launch_gather(world, 32); }},
      {"LargerGather",
       "all_gather #1 of 4096 x Float",
       [](Communicator& world) { return launch_gather(world, 2048); }},
      {"Scatter",
       "reduce_scatter #1 of 128 x Float",
       [](Communicator& world) {
         return world.reduce_scatter(torch::ones({64}), torch::ones({128}));
       }},
      {"Bf16Sum",
       "all_reduce #1 of 10 x BFloat16",
       [](Communicator& world) {
         return world.all_reduce(torch::ones({10}, torch::kBFloat16));
       }},
      {"RoundedSum",
       "all_reduce #1 of 2000 x BFloat16",
       [](Communicator& world) {
         return world.all_reduce_as_bf16(torch::ones({2000}));
       }},
      {"LargerRoundedSum",
       "all_reduce #1 of 9000 x BFloat16",
       [](Communicator& world) {
         return world.all_reduce_as_bf16(torch::ones({9000}));
       }},
      {"Rows",
       "all_reduce_rows #1 of 4000 x Float",
       [](Communicator& world) {
         return world.all_reduce_rows(torch::ones({1000, 4}));
       }},
      {"NativeSum", "all_reduce #1 of 5 x Float", [](Communicator& world) {
         return world.all_reduce(torch::ones({5}));
       }}};
}

using Pair = std::pair<size_t, size_t>;

// Each case with its neighbour, with the smaller message first and last.
std::vector<Pair> neighbours() {
  std::vector<Pair> pairs;
  const size_t cases = composed_cases().size();
  for (size_t a = 0; a < cases; ++a) {
    const size_t b = (a + 1) % cases;
    pairs.push_back(a % 2 == 0 ? Pair(a, b) : Pair(b, a));
  }
  return pairs;
}

class DifferentCollectives : public ::testing::TestWithParam<Pair> {};

// If collectives shared one tag, a message longer than the expected one would
// end the process in Gloo's thread.
TEST_P(DifferentCollectives, AreNamedOnEveryRank) {
  const auto cases = composed_cases();
  const std::vector<ComposedCase> of = {
      cases[GetParam().first], cases[GetParam().second]};
  testing::run_ranks(
      2,
      [&](const CommunicatorPtr& world) {
        const auto rank = static_cast<size_t>(world->rank());
        const size_t other = 1 - rank;
        EXPECT_THAT(
            [&] { of[rank].launch(*world)->wait(); },
            ThrowsMessage<CommError>(AllOf(
                HasSubstr(of[rank].operation + " in group 'world' failed"),
                HasSubstr(
                    "; rank " + std::to_string(other) +
                    " of this group launched " + of[other].operation +
                    ". All ranks"))))
            << "rank " << rank;
      },
      {.check_collectives = false,
       .timeout = std::chrono::seconds(3),
       .first = [](Communicator& world) { launch_gather(world, 8)->wait(); }});
}

std::string name_of(const ::testing::TestParamInfo<Pair>& info) {
  const auto cases = composed_cases();
  return cases[info.param.first].name + "And" + cases[info.param.second].name;
}

INSTANTIATE_TEST_SUITE_P(
    Pairs,
    DifferentCollectives,
    ::testing::ValuesIn(neighbours()),
    name_of);

}  // namespace
}  // namespace brigade
