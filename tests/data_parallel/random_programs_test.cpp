// Random training programs train as in plain torch. build/PRESET/fuzz_library
// draws more of them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "tests/support/run_program.h"

namespace brigade {
namespace {

using testing::differences_of;
using testing::draw_program;
using testing::RandomProgram;

class RandomProgramsTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomProgramsTest, TrainsAsInPlainTorch) {
  const RandomProgram program = draw_program(GetParam());
  const auto differences = differences_of(program);
  EXPECT_TRUE(differences.empty())
      << testing::describe(program) << "\n"
      << fmt::format("{}", fmt::join(differences, "\n"));
}

INSTANTIATE_TEST_SUITE_P(
    Seeds,
    RandomProgramsTest,
    ::testing::Range<uint64_t>(0, 60));

}  // namespace
}  // namespace brigade
