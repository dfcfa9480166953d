#include "brigade/pipeline_parallel/stage.h"

#include <gmock/gmock.h>

#include "brigade/base/error.h"
#include "mlp_chain.h"

namespace brigade {
namespace {

bool runs_at_once(WeightGradientQueue& queue) {
  bool ran = false;
  queue.add([&] { ran = true; });
  return ran;
}

using ::testing::HasSubstr;
using testing::kBatch;
using testing::kHidden;
using testing::kTokens;
using testing::MlpChain;
using ::testing::ThrowsMessage;

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakStorage weak_storage(const torch::Tensor& tensor) {
  return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
      tensor.storage().unsafeGetStorageImpl()));
}

torch::Tensor input_like(double value) {
  return torch::full({kBatch, kTokens, kHidden}, value);
}

TEST(PipelineStage, KeepsNoOutputOnceTheCallerDropsIt) {
  WeakStorage output_storage = weak_storage(torch::zeros({1}));
  const torch::Tensor weight = torch::ones({kHidden}).set_requires_grad(true);
  PipelineStage stage(1, 3, [&](int, const torch::Tensor& input) {
    torch::Tensor output = input + weight;
    output_storage = weak_storage(output);
    return output;
  });
  torch::Tensor output = stage.forward(0, input_like(1));
  EXPECT_FALSE(output_storage.expired());
  output.reset();
  EXPECT_TRUE(output_storage.expired());
  EXPECT_EQ(stage.live(), 1);
  const torch::Tensor gradient = stage.backward(0, input_like(2));
  EXPECT_TRUE(torch::equal(gradient, input_like(2)));
  EXPECT_TRUE(torch::equal(
      weight.grad(), torch::full({kHidden}, 2.0 * kBatch * kTokens)));
  EXPECT_EQ(stage.live(), 0);
}

TEST(PipelineStage, WeightHalfIsLeftToTheLaterCall) {
  const MlpChain model(3);
  const auto queue = std::make_shared<WeightGradientQueue>();
  const auto stage = model.stage(1, queue);
  const torch::Tensor weight = model.parameters(1)[0];
  stage->forward(0, input_like(0.5));
  stage->forward(1, input_like(0.25));
  const torch::Tensor first = stage->backward_input(0, input_like(1));
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(runs_at_once(*queue));
  stage->backward_weight(0);
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_EQ(stage->live(), 1);

  const MlpChain other(3);
  const auto whole = other.stage(1);
  whole->forward(0, input_like(0.5));
  EXPECT_LT(
      (whole->backward(0, input_like(1)) - first).abs().max().item<double>(),
      1e-6);
  EXPECT_LT(
      (other.parameters(1)[0].grad() - weight.grad())
          .abs()
          .max()
          .item<double>(),
      1e-5);
}

TEST(PipelineStage, BackwardAfterAFailedInputHalfIsNotDeferred) {
  const auto queue = std::make_shared<WeightGradientQueue>();
  const MlpChain model(3);
  const auto stage = model.stage(1, queue);
  stage->forward(0, input_like(1));
  EXPECT_ANY_THROW(stage->backward_input(0, torch::ones({5, 7})));
  EXPECT_TRUE(runs_at_once(*queue));
}

TEST(PipelineStage, SaysWhenTheOutputDoesNotDependOnTheInput) {
  PipelineStage stage(
      1, 2, [](int, const torch::Tensor&) { return torch::zeros({}); });
  EXPECT_THAT(
      [&] { stage.forward(0, input_like(1)); },
      ThrowsMessage<UsageError>(
          HasSubstr("the output of stage 1 does not depend on its input")));
}

TEST(PipelineStage, AFrozenFirstStageHasNothingToDoBackwards) {
  PipelineStage stage(
      0, 2, [](int, const torch::Tensor&) { return input_like(1); });
  stage.forward(0, {});
  EXPECT_FALSE(stage.backward(0, input_like(1)).defined());
  EXPECT_EQ(stage.live(), 0);
}

}  // namespace
}  // namespace brigade
