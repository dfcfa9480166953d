#include "brigade/comm/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;

TEST(Backend, AGroupOfOneNeedsNeitherStoreNorNetwork) {
  const auto group = make_communicator(nullptr, 0, 1, {.name = "tp"}, {});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->name(), "tp");
}

TEST(Backend, GlooIsInEveryBuild) {
  EXPECT_NO_THROW(check_backend(Backend::kGloo, {}));
}

TEST(Backend, ABackendThatThisBuildLacksIsAConfigErrorThatNamesIt) {
  try {
    check_backend(Backend::kNccl, {});
    FAIL() << "a CPU build has no NCCL";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"nccl\""));
  }
}

}  // namespace
}  // namespace brigade
