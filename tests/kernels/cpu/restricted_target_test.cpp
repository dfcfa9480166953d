// Runs all tests of this binary on kernels that this processor would not
// choose: BRIGADE_TEST_TARGET=AVX2 (or another of Highway's names) permits that
// target alone, BRIGADE_TEST_TARGET=baseline what every processor has. With
// DNNL_MAX_CPU_ISA in the environment oneDNN is restricted as well.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>

#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/ops/torch_products.h"
// After simd_targets.h.
#include "hwy/highway.h"

namespace brigade::ops {
namespace {

const char* wanted_target() {
  return std::getenv("BRIGADE_TEST_TARGET");
}

// The target of that name if this processor has it, else 0.
int64_t supported_target(const std::string& name) {
  if (name == "baseline")
    return HWY_STATIC_TARGET;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    if (name == hwy::TargetName(left & -left))
      return left & -left;
  }
  return 0;
}

class RestrictTarget : public ::testing::Environment {
 public:
  void SetUp() override {
    // Tests compare with libtorch's products.
    ensure_torch_multiplies_bf16();
    if (wanted_target() == nullptr)
      return;
    const int64_t target = supported_target(wanted_target());
    if (target == 0)
      GTEST_SKIP() << "this processor has no " << wanted_target();
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

const auto* const kRestriction =
    ::testing::AddGlobalTestEnvironment(new RestrictTarget);

TEST(RestrictedTarget, IsWhatKernelsRunOn) {
  if (wanted_target() == nullptr)
    GTEST_SKIP() << "BRIGADE_TEST_TARGET is not set";
  EXPECT_STREQ(
      tile_product_instructions(),
      hwy::TargetName(supported_target(wanted_target())));
  EXPECT_FALSE(detail::has_tile_kind(detail::TileKind::kAvx512Bf16));
  EXPECT_FALSE(detail::has_tile_kind(detail::TileKind::kAmx));
}

}  // namespace
}  // namespace brigade::ops
