#include "brigade/base/parse_number.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

TEST(ParseNumber, TakesTextsThatAreOneNumber) {
  EXPECT_EQ(parse_number<int>("12"), 12);
  EXPECT_EQ(parse_number<int64_t>("-3"), -3);
  EXPECT_EQ(parse_number<double>("2.5e3"), 2500.0);
}

TEST(ParseNumber, RefusesEverythingElse) {
  for (const char* text : {"", "-", "x", "1x", " 1", "1 ", "+1", "2147483648"})
    EXPECT_FALSE(parse_number<int>(text).has_value()) << text;
  EXPECT_FALSE(parse_number<uint64_t>("-1").has_value());
}

}  // namespace
}  // namespace brigade
