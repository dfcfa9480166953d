#include "brigade/base/error.h"

#include <gtest/gtest.h>

#include <typeinfo>

namespace brigade {
namespace {

template <typename Type>
void expect_kept(const std::exception& error, ExitCode code) {
  try {
    rethrow_from("bucket 3", error);
  } catch (const Error& thrown) {
    EXPECT_EQ(typeid(thrown), typeid(Type));
    EXPECT_EQ(thrown.code(), code);
    EXPECT_STREQ(thrown.what(), "bucket 3: it is gone");
  }
}

TEST(Error, KeepsItsTypeBehindAnotherText) {
  expect_kept<UsageError>(UsageError("it is gone"), ExitCode::kConfig);
  expect_kept<ConfigError>(ConfigError("it is gone"), ExitCode::kConfig);
  expect_kept<DataError>(DataError("it is gone"), ExitCode::kData);
  expect_kept<CommError>(CommError("it is gone"), ExitCode::kComm);
  expect_kept<StorageError>(StorageError("it is gone"), ExitCode::kStorage);
  expect_kept<NumericError>(NumericError("it is gone"), ExitCode::kNumeric);
  expect_kept<Error>(Error(ExitCode::kData, "it is gone"), ExitCode::kData);
  expect_kept<Error>(std::logic_error("it is gone"), ExitCode::kUnexpected);
}

}  // namespace
}  // namespace brigade
