// Moments in fewer bits: what a step makes of them, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/block_codes.h"
#include "brigade/optim/adamw.h"
#include "brigade/optim/schedule_free_adamw.h"
#include "brigade/optim/sgd.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kMomentNumel = 1024;

struct OneParameter {
  OneParameter()
      : weight(torch::cos(torch::arange(kMomentNumel, torch::kFloat))) {}
  OptimizerGroup group() const {
    return {
        .name = "all",
        .weight = weight,
        .main_grad = main_grad,
        .rule = {.weight_decay = 0.1},
        .parts = {{.numel = kMomentNumel}}};
  }
  void set_gradient(int step) {
    main_grad.copy_(
        torch::sin(0.3 * torch::arange(kMomentNumel, torch::kFloat) + step));
  }
  Tensor weight;
  Tensor main_grad = torch::zeros({kMomentNumel});
};

// What encode_blocks() and decode_blocks() make of values, by trying all.
Tensor stored(const Tensor& values, torch::ScalarType dtype) {
  const auto& entries = ops::dynamic_map(dtype);
  const Tensor map =
      torch::tensor(std::vector<float>(entries.begin(), entries.end()));
  const Tensor blocks = values.view({-1, kBlockNumel});
  const Tensor scale = blocks.abs().amax(1, /*keepdim=*/true);
  const Tensor distance =
      ((blocks / scale).unsqueeze(2) - map.view({1, 1, -1})).abs();
  return (map.index_select(0, distance.argmin(2).view({-1}))
              .view({-1, kBlockNumel}) *
          scale)
      .view({-1});
}

TEST(Moments, AreRoundedToInt8BetweenStepsAndNotInThem) {
  OneParameter flat;
  AdamW optimizer({flat.group()}, {});
  optimizer.keep_moments_in(MomentDtype::kInt8);
  Tensor weight = flat.weight.clone();
  Tensor m = torch::zeros({kMomentNumel});
  Tensor v = torch::zeros({kMomentNumel});
  for (int step = 1; step <= 3; ++step) {
    flat.set_gradient(step);
    const Tensor g = flat.main_grad.clone();
    optimizer.step(1e-2);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    weight.mul_(1 - 1e-3);
    weight.sub_(
        1e-2 / (1 - std::pow(0.9, step)) * m /
        (v.sqrt() / std::sqrt(1 - std::pow(0.999, step)) + 1e-8));
    EXPECT_LT((weight - flat.weight).abs().max().item<float>(), 2e-6) << step;
    m = stored(m, torch::kChar);
    v = stored(v, torch::kByte);
  }
}

TEST(Moments, TakeAQuarterOfTheirBytesInInt8) {
  OneParameter flat;
  AdamW optimizer({flat.group()}, {});
  optimizer.keep_moments_in(MomentDtype::kInt8);
  size_t bytes = 0;
  for (const State& state : optimizer.states(0))
    bytes += state.tensor.nbytes() + state.scales.nbytes();
  EXPECT_EQ(bytes, kMomentNumel * 2 + kMomentNumel / 256 * 8);
}

// Rounded to the nearest, 0.999 of a bf16 number is that number.
TEST(Moments, DoNotStallInBfloat16) {
  OneParameter flat;
  AdamW optimizer({flat.group()}, {});
  optimizer.keep_moments_in(MomentDtype::kBfloat16);
  Tensor v = find_state(optimizer.states(0), "exp_avg_sq");
  EXPECT_EQ(v.scalar_type(), torch::kBFloat16);
  v.fill_(1);
  for (int step = 0; step < 2000; ++step)
    optimizer.step(0.0);
  EXPECT_NEAR(
      v.to(torch::kDouble).mean().item<double>(), std::pow(0.999, 2000), 0.003);
}

TEST(Moments, AreTheSameInBfloat16ForOneSeedStepAndPlace) {
  const auto run = [](uint64_t seed, const char* name) {
    OneParameter flat;
    const std::vector<Param> params = {{.name = name}};
    OptimizerGroup group = flat.group();
    group.memory = std::make_shared<FlatMemory>(FlatMemory{.params = params});
    AdamW optimizer({group}, {});
    optimizer.keep_moments_in(MomentDtype::kBfloat16, seed);
    for (int step = 0; step < 3; ++step) {
      flat.set_gradient(step);
      optimizer.step(1e-3);
    }
    return find_state(optimizer.states(0), "exp_avg").clone();
  };
  EXPECT_TRUE(torch::equal(run(1, "a"), run(1, "a")));
  EXPECT_FALSE(torch::equal(run(1, "a"), run(2, "a")));
  EXPECT_FALSE(torch::equal(run(1, "a"), run(1, "b")));
}

TEST(Moments, OptimizersThatCannotNarrowThemSaySo) {
  const OneParameter flat;
  Sgd sgd({flat.group()}, {});
  EXPECT_THAT(
      message_of<UsageError>([&] { sgd.keep_moments_in(MomentDtype::kInt8); }),
      HasSubstr("int8 of the optimizer sgd, which without momentum"));
  ScheduleFreeAdamW schedule_free({flat.group()}, {});
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { schedule_free.keep_moments_in(MomentDtype::kBfloat16); }),
      HasSubstr("bfloat16 of the optimizer schedule_free_adamw"));
}

TEST(Moments, RefusesBlocksThatCrossAParametersBeginning) {
  const OneParameter flat;
  OptimizerGroup group = flat.group();
  group.parts = {{.numel = 64}, {.param = 1, .offset = 64, .numel = 100}};
  AdamW optimizer({group}, {});
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { optimizer.keep_moments_in(MomentDtype::kInt8); }),
      HasSubstr("block_numel = 256"));
}

}  // namespace
}  // namespace brigade
