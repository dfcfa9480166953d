#include "brigade/base/readable.h"

#include <gtest/gtest.h>

#include "brigade/base/units.h"

namespace brigade {
namespace {

TEST(Readable, NoNumberThatIsNotZeroIsShownAsZero) {
  EXPECT_EQ(readable_bytes(0), "0 bytes");
  EXPECT_EQ(readable_bytes(7), "7 bytes");
  EXPECT_EQ(readable_bytes(1801), "1.80 kB");
  EXPECT_EQ(readable_bytes(2.5e6), "2.50 MB");
  EXPECT_EQ(readable_bytes(3e9), "3.00 GB");
  EXPECT_EQ(readable_bytes(4e16), "40000.00 TB");
  EXPECT_STREQ(memory_unit(1e6).name, "MiB");
  EXPECT_EQ(memory_unit(1e6).bytes, static_cast<double>(MiB));
  EXPECT_STREQ(memory_unit(2e9).name, "GiB");
}

}  // namespace
}  // namespace brigade
