#include "brigade/base/hash.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

// The test vectors of its authors:
// http://www.isthe.com/chongo/src/fnv/test_fnv.c
TEST(Hash, IsFnv1aWith64Bits) {
  EXPECT_EQ(fnv1a_64(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a_64("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fnv1a_64("foobar"), 0x85944171f73967e8ULL);
}

}  // namespace
}  // namespace brigade
