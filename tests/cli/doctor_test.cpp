#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DoctorCommand : public ProgramTest {};

TEST_F(DoctorCommand, FindsThisMachineFit) {
  const std::filesystem::path scratch = folder_ / "scratch";
  std::filesystem::create_directory(scratch);
  EXPECT_EQ(
      exit_code(
          start({"doctor", "--nproc", "2", "--folder", scratch.string()})),
      0)
      << out() << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("libtorch"),
          HasSubstr("2 started by brigade"),
          HasSubstr("dp2 zero2"),
          HasSubstr("this machine is fit to train on")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

TEST_F(DoctorCommand, NamesAFolderThatCannotBeWritten) {
  EXPECT_EQ(exit_code(start({"doctor", "--folder", "/proc/nowhere"})), 6);
  EXPECT_THAT(err(), HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace brigade
