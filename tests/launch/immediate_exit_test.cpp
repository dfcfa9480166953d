#include "brigade/launch/immediate_exit.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

namespace brigade {
namespace {

struct AbortsAtExit {
  ~AbortsAtExit() { ::abort(); }
};

void make_static_object() {
  static const AbortsAtExit object;
}

TEST(ImmediateExitDeathTest, KeepsTheCodeBeforeStaticObjectsEnd) {
  const auto end_in_the_second_step = [] {
    ImmediateExit exits;
    exits.arm();
    make_static_object();
    exits.arm();
    ::exit(7);
  };
  EXPECT_EXIT(end_in_the_second_step(), ::testing::ExitedWithCode(7), "");
}

TEST(ImmediateExitDeathTest, LeavesExitAloneAfterItsLife) {
  const auto end_after_training = [] {
    {
      ImmediateExit exits;
      exits.arm();
      make_static_object();
      exits.arm();
    }
    ::exit(7);
  };
  EXPECT_EXIT(end_after_training(), ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace brigade
