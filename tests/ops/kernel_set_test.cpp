#include "brigade/ops/kernel_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "brigade/base/error.h"
#include "brigade/ops/rms_norm.h"
#include "tests/support/message_of.h"

namespace brigade::ops {
namespace {

std::string name_of(Kernels wanted, const Tensor& x, const Tensor& y = {}) {
  return choose_kernels("op", wanted, {&x, &y}).name();
}

TEST(ChooseKernels, AutoTakesTheCpusForWhatTheyTake) {
  const Tensor x = torch::zeros({2});
  EXPECT_EQ(name_of(Kernels::kAuto, x), "cpu");
  EXPECT_EQ(name_of(Kernels::kAuto, x.to(torch::kBFloat16)), "cpu");
  EXPECT_EQ(name_of(Kernels::kAuto, x.to(torch::kDouble)), "aten");
  EXPECT_EQ(name_of(Kernels::kAuto, x, x.to(torch::kBFloat16)), "aten");
  EXPECT_EQ(name_of(Kernels::kAuto, x.to(torch::kMeta)), "aten");
}

TEST(ChooseKernels, AtenTakesEverything) {
  EXPECT_EQ(name_of(Kernels::kAten, torch::zeros({2})), "aten");
}

TEST(ChooseKernels, NothingToComputeIsAtens) {
  EXPECT_EQ(name_of(Kernels::kCpu, torch::zeros({0})), "aten");
}

TEST(ChooseKernels, TheCpusSayWhatTheyDoNotTake) {
  const auto message = [](const Tensor& x) {
    return message_of<Error>([&] {
      rms_norm(
          x,
          torch::ones({3}, x.options()),
          1e-5,
          {WeightGrad::kReturn, Kernels::kCpu});
    });
  };
  EXPECT_EQ(message(torch::ones({2, 3})), "");
  EXPECT_THAT(
      message(torch::ones({2, 3}, torch::kDouble)),
      ::testing::AllOf(
          ::testing::HasSubstr("[rms_norm]"),
          ::testing::HasSubstr("Double"),
          ::testing::HasSubstr("set the kernels to auto or aten")));
  EXPECT_THAT(
      message(torch::ones({2, 3}, torch::kMeta)),
      ::testing::HasSubstr("on meta"));
}

}  // namespace
}  // namespace brigade::ops
