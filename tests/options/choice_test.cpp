#include "brigade/options/choice.h"

#include <gmock/gmock.h>

#include <set>
#include <string>

#include "brigade/options/backend.h"
#include "brigade/options/grad_sync_algorithm.h"
#include "brigade/options/kernels.h"
#include "brigade/options/verify_level.h"
#include "brigade/options/wire_format.h"

namespace brigade {
namespace {

template <class Enum>
std::string names() {
  std::string text;
  std::set<Enum> values;
  for (const auto& [value, name] : kChoices<Enum>) {
    EXPECT_STREQ(to_string(value), name);
    EXPECT_EQ(find_choice<Enum>(name), value);
    EXPECT_TRUE(values.insert(value).second) << name;
    text += std::string(text.empty() ? "" : " ") + name;
  }
  return text;
}

TEST(Choice, EachValueHasOneName) {
  EXPECT_EQ(names<ops::Kernels>(), "auto cpu aten");
  EXPECT_EQ(names<Backend>(), "gloo nccl mpi");
  EXPECT_EQ(names<HierarchyChoice>(), "auto on off");
  EXPECT_EQ(names<GradSyncAlgorithm>(), "bucketed per_param");
  EXPECT_EQ(names<WireFormat>(), "fp32 bf16 int8 int4 int2");
  EXPECT_EQ(names<VerifyLevel>(), "full size");
}

TEST(Choice, AnInvalidValueHasNoName) {
  EXPECT_STREQ(to_string(static_cast<Backend>(77)), "?");
}

TEST(Choice, OnlyTypesWithATableAreChoices) {
  EXPECT_TRUE(NamedChoice<Backend>);
  EXPECT_FALSE(NamedChoice<int>);
  EXPECT_FALSE(NamedChoice<std::string>);
}

}  // namespace
}  // namespace brigade
