#include "brigade/comm/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/comm/gpus.h"
#include "brigade/comm/mpi/mpi_communicator.h"
#include "brigade/launch/environment.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Backend, AGroupOfOneNeedsNeitherStoreNorNetwork) {
  const auto group = make_communicator(nullptr, 0, 1, {.name = "tp"}, {});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->name(), "tp");
}

TEST(Backend, GlooIsInEveryBuild) {
  EXPECT_NO_THROW(check_backend(Backend::kGloo, {}));
}

// It would record operations a second time, and it has a data race in 2.11.
TEST(Backend, LibtorchsOwnRecorderIsOff) {
  EXPECT_EQ(process_environment()("TORCH_FR_BUFFER_SIZE"), "0");
}

// Without a GPU, a build either has no NCCL or nothing to run it on.
TEST(Backend, NcclWithoutAGpuIsAConfigErrorThatSaysWhatIsMissing) {
  if (find_gpus().count > 0)
    GTEST_SKIP() << "this machine has GPUs";
  EXPECT_THAT(
      [&] { check_backend(Backend::kNccl, {}); },
      ThrowsMessage<ConfigError>(::testing::AnyOf(
          HasSubstr("\"nccl\" is not in this build"),
          HasSubstr("CUDA finds no GPU that it can use here"))));
}

TEST(Backend, MpiIsRefusedWhereItsLauncherDidNotStartTheRanks) {
  const auto refusal = [](const LaunchEnvironment& environment) {
    return message_of<ConfigError>(
        [&] { check_backend(Backend::kMpi, environment); });
  };
  if (!has_mpi()) {
    EXPECT_THAT(refusal({}), HasSubstr("-DBRIGADE_MPI=ON"));
    return;
  }
  LaunchEnvironment environment;
  EXPECT_THAT(refusal(environment), HasSubstr("run mpirun -n 4"));
  EXPECT_THAT(refusal(environment), HasSubstr("started by hand"));
  // mpirun -n 1 brigade train --nproc 4
  environment.has_mpi = true;
  environment.launcher = "brigade";
  EXPECT_THAT(refusal(environment), HasSubstr("started by --nproc"));
  environment.launcher = "mpirun";
  EXPECT_EQ(refusal(environment), "");
}

}  // namespace
}  // namespace brigade
