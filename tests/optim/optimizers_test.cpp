// Muon, SGD and schedule-free AdamW against the programs that they are named
// after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/ops/split_master.h"
#include "brigade/optim/muon.h"
#include "brigade/optim/schedule_free_adamw.h"
#include "brigade/optim/sgd.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int kSteps = 20;

// What the reference values below were computed with.
Tensor initial(int64_t numel) {
  return torch::cos(torch::arange(numel, torch::kDouble)).to(torch::kFloat);
}
Tensor gradient(int64_t numel, int step) {
  const Tensor i = torch::arange(numel, torch::kDouble);
  return torch::sin(0.7 * i * i + (1.3 * step + 0.1)).to(torch::kFloat);
}

double largest_error(
    const Tensor& actual,
    const std::vector<double>& expected) {
  return (actual.to(torch::kDouble) -
          torch::tensor(expected, torch::dtype(torch::kDouble)))
      .abs()
      .max()
      .item<double>();
}

struct MuonCase {
  std::pair<int64_t, int64_t> shape;
  bool nesterov;
  MuonScale scale;
  std::vector<double> weights;  // after kSteps
};

// torch.optim.Muon of PyTorch 2.14 in float64, lr 0.02, weight_decay 0.1, its
// Newton-Schulz without the rounding to bfloat16.
const std::vector<MuonCase> kTorchsMuon = {
    {{3, 2},
     true,
     MuonScale::kOriginal,
     {0.931559969,
      0.451839667,
      -0.369613306,
      -1.000454225,
      -0.597940218,
      0.282242286}},
    {{3, 2},
     true,
     MuonScale::kMatchRmsAdamW,
     {0.952494499,
      0.500073006,
      -0.391271575,
      -0.965085472,
      -0.619489731,
      0.275276128}},
    {{3, 2},
     false,
     MuonScale::kOriginal,
     {0.891630166,
      0.404268996,
      -0.329945225,
      -1.043975716,
      -0.582265538,
      0.293510408}},
    {{2, 4},
     true,
     MuonScale::kMatchRmsAdamW,
     {0.952415447,
      0.500331132,
      -0.402127280,
      -0.960204090,
      -0.625818029,
      0.270922749,
      0.910005823,
      0.728097126}},
    {{2, 4},
     false,
     MuonScale::kOriginal,
     {0.929765023,
      0.427778531,
      -0.423249454,
      -0.996042264,
      -0.619785446,
      0.252224737,
      0.840938312,
      0.750607319}}};

// A matrix with padding behind it, as in a bucket.
struct Flat {
  explicit Flat(int64_t numel, torch::ScalarType dtype = torch::kFloat)
      : weight(torch::zeros({numel + 3}, dtype)),
        main_grad(torch::zeros({numel + 3})) {
    weight.narrow(0, 0, numel).copy_(initial(numel));
  }
  Tensor weight;
  Tensor main_grad;
  std::vector<Param> params;  // that Muon reads
};

Muon make_muon_of(
    Flat& flat,
    std::pair<int64_t, int64_t> shape,
    const MuonOptions& options) {
  const auto [rows, columns] = shape;
  flat.params = {
      {"matrix",
       flat.weight.narrow(0, 0, rows * columns).view({rows, columns})}};
  OptimizerGroup group{"all", flat.weight, flat.main_grad};
  group.rule = {.weight_decay = 0.1, .unit = StepUnit::kMatrices};
  group.parts = {{.numel = rows * columns}};
  const auto self = make_self_communicator({});
  return {
      {group},
      flat.params,
      [&](const Param&) { return self; },
      {.muon = options}};
}

TEST(Muon, StepsAsTorchsDoes) {
  for (const MuonCase& each : kTorchsMuon) {
    const int64_t numel = each.shape.first * each.shape.second;
    Flat flat(numel);
    Muon optimizer = make_muon_of(
        flat,
        each.shape,
        {.nesterov = each.nesterov,
         .scale = each.scale,
         .newton_schulz = {.dtype = MuonDtype::kFloat32}});
    for (int step = 0; step < kSteps; ++step) {
      flat.main_grad.narrow(0, 0, numel).copy_(gradient(numel, step) * 4);
      optimizer.step(0.02, 0.25, ops::AfterRead::kZero);
      EXPECT_EQ(flat.main_grad.abs().max().item<float>(), 0.0F);
    }
    EXPECT_LT(
        largest_error(flat.weight.narrow(0, 0, numel), each.weights), 1e-6)
        << each.shape.first << " x " << each.shape.second << " "
        << to_string(each.scale);
    EXPECT_EQ(flat.weight.narrow(0, numel, 3).abs().max().item<float>(), 0);
  }
}

TEST(Muon, KeepsGradientsThatItIsNotToClear) {
  Flat flat(6);
  Muon optimizer = make_muon_of(flat, {3, 2}, {});
  flat.main_grad.copy_(gradient(9, 1));
  optimizer.step(0.02, 1.0, ops::AfterRead::kKeep);
  EXPECT_TRUE(torch::equal(flat.main_grad, gradient(9, 1)));
}

TEST(Muon, StepsTheMastersOfBf16Weights) {
  const MuonOptions options{.newton_schulz = {.dtype = MuonDtype::kFloat32}};
  Flat whole(6);
  Flat split(6, torch::kBFloat16);
  Muon of_whole = make_muon_of(whole, {3, 2}, options);
  Muon of_split = make_muon_of(split, {3, 2}, options);
  const Tensor low = find_state(of_split.states(0), kMasterLow);
  ops::split_master(whole.weight, split.weight, low);
  for (int step = 0; step < 5; ++step) {
    for (auto& [flat, optimizer] :
         {std::pair{&whole, &of_whole}, std::pair{&split, &of_split}}) {
      flat->main_grad.copy_(gradient(9, step));
      optimizer->step(1e-4);
    }
  }
  EXPECT_TRUE(torch::equal(ops::join_master(split.weight, low), whole.weight));
}

TEST(Muon, NamesAParameterThatIsNoMatrix) {
  const std::vector<Param> params = {{"vector", torch::zeros({4})}};
  OptimizerGroup group{"all", torch::zeros({4}), torch::zeros({4})};
  group.rule.unit = StepUnit::kMatrices;
  group.parts = {{.numel = 4}};
  const auto self = make_self_communicator({});
  EXPECT_THAT(
      [&] {
        const Muon muon(
            {group}, params, [&](const Param&) { return self; }, {});
      },
      ThrowsMessage<UsageError>(HasSubstr("'vector' has 1 dimensions")));
}

TEST(Sgd, StepsAsTorchsDoes) {
  for (const auto& [momentum, nesterov] :
       {std::pair{0.0, false}, {0.9, false}, {0.9, true}}) {
    Tensor expected = initial(9).to(torch::kDouble).requires_grad_(true);
    torch::optim::SGD torchs(
        {expected},
        torch::optim::SGDOptions(0.05)
            .momentum(momentum)
            .nesterov(nesterov)
            .weight_decay(0.1));
    const Tensor weight = initial(9);
    Tensor main_grad = torch::zeros({9});
    OptimizerGroup group{"all", weight, main_grad};
    group.rule.weight_decay = 0.1;
    Sgd optimizer({group}, {.momentum = momentum, .nesterov = nesterov});
    EXPECT_EQ(optimizer.states(0).size(), momentum == 0 ? 0U : 1U);
    for (int step = 0; step < kSteps; ++step) {
      expected.mutable_grad() = gradient(9, step).to(torch::kDouble);
      torchs.step();
      main_grad.copy_(gradient(9, step) * 2);
      optimizer.step(0.05, 0.5);
      EXPECT_EQ(main_grad.abs().max().item<float>(), 0.0F);
    }
    EXPECT_LT((weight - expected).abs().max().item<double>(), 1e-6)
        << momentum << " " << nesterov;
  }
}

TEST(MovingAverage, IsThatOfTheWeightsAfterEachStep) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const Tensor weight = initial(9).to(dtype);
    Tensor main_grad = torch::zeros({9});
    Sgd optimizer({{"all", weight, main_grad}}, {.momentum = 0.9});
    optimizer.keep_average(0.75);
    EXPECT_TRUE(optimizer.averages_weights());
    const Tensor low = find_state(optimizer.states(0), kMasterLow);
    const auto master = [&] {
      return (low.defined() ? ops::join_master(weight, low) : weight)
          .to(torch::kDouble);
    };
    Tensor expected = master().clone();
    for (int step = 0; step < kSteps; ++step) {
      main_grad.copy_(gradient(9, step));
      optimizer.step(0.05);
      expected = 0.75 * expected + 0.25 * master();
    }
    const Tensor before = master().clone();
    optimizer.show_averages();
    EXPECT_LT((master() - expected).abs().max().item<double>(), 1e-6);
    optimizer.hide_averages();
    EXPECT_TRUE(torch::equal(master(), before));
  }
}

TEST(Sgd, LongRangesAreSteppedInParts) {
  constexpr int64_t kNumel = (1 << 20) + 5;
  const Tensor weight = torch::ones({kNumel});
  Sgd optimizer({{"all", weight, torch::ones({kNumel})}}, {.momentum = 0.5});
  optimizer.step(0.25);
  EXPECT_EQ(weight.min().item<float>(), 0.75F);
  EXPECT_EQ(weight.max().item<float>(), 0.75F);
}

struct ScheduleFreeCase {
  int64_t warmup;
  double weight_decay;
  double step_power;
  std::vector<double> training;  // y after kSteps
  std::vector<double> averages;  // x
};

// AdamWScheduleFree of schedulefree 1.4.1 in float64, lr 0.05, betas (0.9,
// 0.95).
const std::vector<ScheduleFreeCase> kScheduleFree = {
    {0,
     0.0,
     0.0,
     {0.913153319,
      0.491549575,
      -0.415046335,
      -1.075962393,
      -0.642516861,
      0.294179882},
     {0.907784089,
      0.488615379,
      -0.409404383,
      -1.081301263,
      -0.645255145,
      0.291361552}},
    {3,
     0.1,
     1.0,
     {0.908800701,
      0.511868228,
      -0.378969061,
      -0.950364920,
      -0.633567164,
      0.242389170},
     {0.906470183,
      0.510953968,
      -0.374540640,
      -0.958547068,
      -0.638633265,
      0.240020738}}};

TEST(ScheduleFreeAdamW, StepsAndAveragesAsItsAuthorsDo) {
  for (const ScheduleFreeCase& each : kScheduleFree) {
    const Tensor weight = initial(6);
    Tensor main_grad = torch::zeros({6});
    OptimizerGroup group{"all", weight, main_grad};
    group.rule.weight_decay = each.weight_decay;
    const ScheduleFreeAdamW::Options options{
        .adamw = {.beta2 = 0.95},
        .schedule_free = {.step_power = each.step_power}};
    ScheduleFreeAdamW optimizer({group}, options);
    // Half way another one goes on with what this one kept.
    ScheduleFreeAdamW second({group}, options);
    ScheduleFreeAdamW* now = &optimizer;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps / 2) {
        for (size_t k = 0; k < 2; ++k)
          Tensor(second.states(0)[k].tensor)
              .copy_(optimizer.states(0)[k].tensor);
        second.set_steps(optimizer.steps());
        second.set_scalars(optimizer.scalars());
        now = &second;
      }
      const double rate =
          each.warmup == 0
              ? 0.05
              : 0.05 *
                    std::min(
                        1.0, (step + 1.0) / static_cast<double>(each.warmup));
      main_grad.copy_(gradient(6, step));
      now->step(rate);
    }
    EXPECT_LT(largest_error(weight, each.training), 1e-6);
    const Tensor before = weight.clone();
    now->show_averages();
    EXPECT_LT(largest_error(weight, each.averages), 1e-6);
    now->hide_averages();
    EXPECT_TRUE(torch::equal(weight, before));
  }
}

TEST(ScheduleFreeAdamW, NeedsABeta1ThatSaysWhatTheAverageIs) {
  EXPECT_THROW(ScheduleFreeAdamW({}, {.adamw = {.beta1 = 0}}), ConfigError);
}

}  // namespace
}  // namespace brigade
