#include "brigade/launch/rank_signals.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "brigade/base/error.h"

namespace brigade {
namespace {

std::optional<KillGrace> grace_of(
    const std::string& launcher,
    const std::map<std::string, std::string>& variables) {
  LaunchEnvironment environment;
  environment.launcher = launcher;
  return kill_grace(
      environment, [&](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(std::string(name));
        if (found == variables.end())
          return std::nullopt;
        return found->second;
      });
}

constexpr const char* kTimeout = "OMPI_MCA_odls_base_sigkill_timeout";

TEST(KillGrace, IsTheTimeoutOfMpirun) {
  EXPECT_EQ(grace_of("mpirun", {})->seconds, 1);
  EXPECT_EQ(grace_of("mpirun", {{kTimeout, "10"}})->seconds, 10);
  EXPECT_TRUE(grace_of("mpirun", {})->can_grow);
  EXPECT_THROW(grace_of("mpirun", {{kTimeout, "long"}}), ConfigError);
}

TEST(KillGrace, IsHalfASecondUnderOpenMpi5) {
  const auto grace =
      grace_of("mpirun", {{"PRTE_LAUNCHED", "1"}, {kTimeout, "10"}});
  EXPECT_EQ(grace->seconds, 0.5);
  EXPECT_FALSE(grace->can_grow);
}

TEST(KillGrace, IsUnknownUnderOtherLaunchers) {
  EXPECT_FALSE(grace_of("srun", {{kTimeout, "10"}}));
}

}  // namespace
}  // namespace brigade
