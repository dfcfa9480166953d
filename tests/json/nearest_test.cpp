#include "brigade/json/nearest.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

TEST(EditDistance, CountsEditsAndSwapsAndIgnoresCaseAndDashes) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("sedd", "seed"), 1);
  EXPECT_EQ(edit_distance("esed", "seed"), 1);
  EXPECT_EQ(edit_distance("DP-size", "dp_size"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("", ""), 0);
  // Names are compared by their first 64 letters.
  EXPECT_EQ(edit_distance(std::string(1 << 20, 'a'), "a"), 63);
}

TEST(NearestName, PrefersTheFirstOfEqualsAndNamesThatHoldTheOther) {
  EXPECT_EQ(nearest_name("sizes", {"tp_size", "dp_size"}), 0U);
  EXPECT_EQ(
      nearest_name("batch_size", {"dp_size", "beta", "micro_batch_size"}), 2U);
}

}  // namespace
}  // namespace brigade
