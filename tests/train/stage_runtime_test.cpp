#include "brigade/train/stage_runtime.h"

#include <gtest/gtest.h>

#include "brigade/config/model_layout.h"
#include "brigade/model/from_config.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

// A rank of the pipeline holds several stages: the list is of stages.
TEST(StageRuntime, RecomputesWhatTheConfigSaysForItsStage) {
  TrainConfig config;
  config.model.decoder =
      parsed_config(testing::tiny_run("none")["model"]["config"]);
  config.model.dtype = ModelDtype::kFloat32;
  config.distributed.dims.pp = 2;
  config.distributed.pp_virtual_stages = 2;
  const std::vector<Recompute> expected = {
      Recompute::kNone,
      Recompute::kFull,
      Recompute::kSelective,
      Recompute::kNone};
  config.training.recompute = expected;
  const std::vector<ModelPart> parts = stage_parts(config);
  ASSERT_EQ(parts.size(), expected.size());
  const ProcessMesh mesh({}, 0, nullptr);
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    StageRuntime runtime(
        config,
        model_context(config, mesh),
        mesh,
        static_cast<int>(stage),
        parts[stage]);
    EXPECT_EQ(runtime.model().context().recompute, expected[stage]) << stage;
  }
}

// Without gradients AdamW multiplies what decays by 1 - rate * decay.
TEST(StageRuntime, DecaysAllParametersOrMatricesAlone) {
  for (const WeightDecayOn which :
       {WeightDecayOn::kAll, WeightDecayOn::kMatrices}) {
    TrainConfig config;
    config.model.decoder =
        parsed_config(testing::tiny_run("none")["model"]["config"]);
    config.training.weight_decay = 0.5;
    config.training.weight_decay_on = which;
    const ProcessMesh mesh({}, 0, nullptr);
    StageRuntime runtime(
        config,
        model_context(config, mesh),
        mesh,
        0,
        whole_model(*config.model.decoder));
    std::vector<torch::Tensor> before;
    runtime.params().visit(
        [&](const Param& param) { before.push_back(param.tensor.clone()); });
    runtime.optimizer().step(0.2);
    size_t i = 0;
    runtime.params().visit([&](const Param& param) {
      const bool decays = which == WeightDecayOn::kAll || before[i].dim() == 2;
      EXPECT_TRUE(
          torch::allclose(param.tensor, before[i] * (decays ? 0.9 : 1.0)))
          << param.name;
      ++i;
    });
  }
}

}  // namespace
}  // namespace brigade
