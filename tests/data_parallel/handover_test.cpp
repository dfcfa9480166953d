// How backwards, the reduction and users move gradients between .grad and
// main_grad.
#include "brigade/data_parallel/handover.h"

#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

// One parameter of three elements with its memory; receive() plays
// AccumulateGrad.
struct HandedOver {
  HandedOver(torch::ScalarType dtype, FlatWeights place)
      : params{
            {.name = "w",
             .tensor = torch::zeros({3}, dtype).requires_grad_(),
             .group = testing::make_world_of_one(),
             .dtype = dtype}} {
    memory = std::make_unique<ParamMemory>(
        plan_buckets(
            bucket_params_of(params, Sharding::kNone), std::vector<int>{0}, {}),
        params,
        place,
        Sharding::kNone);
  }
  HandoverParts parts() {
    return {
        *memory,
        [this](int) { return mean_scale; },
        [this] { return mean_scale / factor; },
        progress};
  }
  torch::Tensor& grad() { return params[0].tensor.mutable_grad(); }
  void receive(Handover& handover, double value, GradPart part) {
    arrive(handover, value, part);
    handover.after_accumulate(0, part);
  }
  void arrive(Handover& handover, double value, GradPart part) {
    const torch::NoGradGuard no_grad;
    handover.before_accumulate(0, part);
    const auto gradient = torch::full(
        {3}, value, params[0].tensor.options().requires_grad(false));
    if (grad().defined())
      grad().add_(gradient);
    else
      grad() = gradient;
  }
  double main_grad() const { return memory->main_grad(0)[2].item<double>(); }
  double given() { return grad()[2].item<double>(); }

  std::vector<Param> params;
  std::unique_ptr<ParamMemory> memory;
  double mean_scale = 0.5;
  double factor = 1;  // the parameter's own scale over the optimizer's
  StepProgress progress{params};
};

class ParamDtype : public ::testing::TestWithParam<torch::ScalarType> {
 protected:
  HandedOver of_{GetParam(), FlatWeights::kLeaveAlone};
  std::unique_ptr<Handover> handover_ = make_param_dtype_handover(of_.parts());
};

TEST_P(ParamDtype, MicroBatchesAddUpAndTheMeanIsGiven) {
  of_.receive(*handover_, 2, GradPart::kFirst);
  EXPECT_EQ(of_.given(), 2);  // what has accumulated can be read
  of_.arrive(*handover_, 4, GradPart::kFurther);
  handover_->after_last(0, GradPart::kFurther);
  EXPECT_FALSE(of_.grad().defined());
  // The mean is applied before the reduction, or when the 16 bits are made.
  EXPECT_EQ(of_.main_grad(), GetParam() == torch::kFloat ? 3 : 6);
  handover_->give(0, GradUse::kUsed);
  EXPECT_EQ(of_.grad().scalar_type(), GetParam());
  EXPECT_EQ(of_.given(), 3);
}

TEST_P(ParamDtype, AUsersChangeOfAnAccumulatedGradientCounts) {
  const torch::NoGradGuard no_grad;
  of_.mean_scale = 1;
  of_.receive(*handover_, 2, GradPart::kFirst);
  of_.grad().mul_(5);
  of_.arrive(*handover_, 4, GradPart::kFurther);
  handover_->after_last(0, GradPart::kFurther);
  EXPECT_EQ(of_.main_grad(), 14);
}

TEST_P(ParamDtype, AnUnusedGradientIsUndefined) {
  handover_->finalize_missing(0);
  EXPECT_EQ(of_.main_grad(), 0);
  handover_->give(0, GradUse::kUnused);
  EXPECT_FALSE(of_.grad().defined());
}

TEST_P(ParamDtype, EachRankKeepsItsShareOfAReducedGradient) {
  of_.arrive(*handover_, 6, GradPart::kFirst);
  handover_->after_last(0, GradPart::kFirst);
  const torch::NoGradGuard no_grad;
  of_.memory->main_grad(0).mul_(2);  // the sum of two equal ranks
  handover_->give(0, GradUse::kUsed);
  EXPECT_EQ(of_.given(), 6);
  EXPECT_TRUE(handover_->keep_share(0, 2));
  handover_->finalize(0);
  of_.memory->main_grad(0).mul_(2);
  handover_->give(0, GradUse::kUsed);
  EXPECT_EQ(of_.given(), 6);
  of_.grad().reset();
  EXPECT_FALSE(handover_->keep_share(0, 2));
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    ParamDtype,
    ::testing::Values(torch::kFloat, torch::kBFloat16),
    [](const auto& each) { return c10::toString(each.param); });

TEST(MainGradHandover, GradIsMainGradAtAllTimes) {
  HandedOver of(torch::kFloat, FlatWeights::kMove);
  const auto handover = make_main_grad_handover(of.parts());
  EXPECT_TRUE(is_same_memory(of.grad(), of.memory->main_grad(0)));
  of.receive(*handover, 2, GradPart::kFirst);
  of.receive(*handover, 3, GradPart::kFurther);
  handover->finalize(0);
  EXPECT_EQ(of.main_grad(), 5);  // the optimizer scales
  handover->give(0, GradUse::kUsed);
  EXPECT_EQ(of.given(), 5);
  EXPECT_EQ(handover->clearing(), GradClearing::kNone);
}

TEST(MainGradHandover, AGradientOfAnotherGroupIsScaledBeforeItIsReduced) {
  HandedOver of(torch::kFloat, FlatWeights::kMove);
  of.factor = 4;
  const auto handover = make_main_grad_handover(of.parts());
  of.receive(*handover, 2, GradPart::kFirst);
  EXPECT_EQ(of.main_grad(), 2);
  handover->finalize(0);
  EXPECT_EQ(of.main_grad(), 8);
}

TEST(MainGradHandover, AClearedGradientDropsWhatHasAccumulated) {
  HandedOver of(torch::kFloat, FlatWeights::kMove);
  const auto handover = make_main_grad_handover(of.parts());
  of.receive(*handover, 2, GradPart::kFirst);
  of.grad().reset();
  EXPECT_EQ(handover->clearing(), GradClearing::kAll);
  of.receive(*handover, 3, GradPart::kFurther);
  EXPECT_EQ(of.main_grad(), 3);
  EXPECT_TRUE(is_same_memory(of.grad(), of.memory->main_grad(0)));
}

}  // namespace
}  // namespace brigade
