#include "brigade/files/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

class FingerprintTest : public ::testing::Test {
 protected:
  std::string of(const std::string& text) const {
    write_text_file(folder_ / "file", text);
    return fingerprint_of_file(folder_ / "file");
  }

  const TemporaryFolder folder_;
};

TEST_F(FingerprintTest, SeesSizeHeadAndTail) {
  const std::string text(300000, 'x');
  std::string head = text;
  head.front() = 'y';
  std::string tail = text;
  tail.back() = 'y';
  EXPECT_THAT(of(text), StartsWith("300000 bytes, digest "));
  EXPECT_EQ(of(text), of(text));
  EXPECT_NE(of(head), of(text));
  EXPECT_NE(of(tail), of(text));
  EXPECT_NE(of(tail), of(head));
  EXPECT_NE(of(text + "x"), of(text));
  EXPECT_THAT(of(""), StartsWith("0 bytes"));
}

TEST_F(FingerprintTest, AMissingFileIsNamed) {
  const fs::path missing = folder_ / "missing";
  EXPECT_THAT(
      [&] { fingerprint_of_file(missing); },
      ThrowsMessage<DataError>(HasSubstr(missing.string())));
}

}  // namespace
}  // namespace brigade
