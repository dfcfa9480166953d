// Every ZeRO stage trains what stage 0 trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/model_layout.h"
#include "brigade/config/train_config.h"
#include "brigade/model/from_config.h"
#include "brigade/run/model_units.h"
#include "brigade/sharding/sharded_weights.h"
#include "brigade/train/stage_runtime.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/train_as_threads.h"
#include "tests/support/whole_units.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;
using testing::whole_units;

struct ZeroCase {
  std::string name;
  int ranks = 2;
  std::vector<std::string> overrides;
};

void PrintTo(const ZeroCase& each, std::ostream* out) {
  *out << each.name;
}

class ZeroStages : public ::testing::TestWithParam<ZeroCase> {
 protected:
  ZeroStages() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config["model"]["dtype"] = "float32";
    config["training"]["total_train_steps"] = 20;
    config["training"]["gradient_accumulation_steps"] = 2;
    config["training"]["grad_clip"] = 0.5;
    config["training"]["learning_rate"] = 1e-3;
    config["distributed"]["bucket_cap_mb"] = 0.04;
    testing::write_file(folder_ / "run.json", config.dump());
  }

  std::vector<double> losses(int stage) {
    const auto run = folder_ / ("zero" + std::to_string(stage));
    auto overrides = GetParam().overrides;
    overrides.push_back("logging.run_dir=" + run.string());
    overrides.push_back("distributed.zero_stage=" + std::to_string(stage));
    testing::train_as_threads(
        folder_ / "run.json", GetParam().ranks, overrides);
    return testing::losses_of(run);
  }

  testing::RunsFolder folder_;
};

TEST_P(ZeroStages, HaveTheLossesOfStage0) {
  const std::vector<double> expected = losses(0);
  ASSERT_EQ(expected.size(), 20U);
  EXPECT_LT(expected.back(), 0.95 * expected.front());
  for (const int stage : {1, 2, 3})
    EXPECT_LT(
        testing::largest_relative_difference(losses(stage), expected), 1e-6)
        << "stage " << stage;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    ZeroStages,
    ::testing::Values(
        ZeroCase{"dp2", 2, {}},
        ZeroCase{"dp3", 3, {"model.config.tie_word_embeddings=false"}},
        ZeroCase{"dp2_tp2", 4, {"distributed.tp_size=2"}},
        ZeroCase{
            "dp2_cp2",
            4,
            {"distributed.cp_size=2", "training.recompute=full"}}),
    [](const auto& each) { return each.param.name; });

TEST(WeightUnits, AreOnePerLayerAndTheTwoEnds) {
  const ModelUnit embedding{Place::kEmbedding};
  const ModelUnit head{Place::kHead};
  const auto layer = [](int64_t index) {
    return ModelUnit{Place::kLayer, index};
  };
  const auto units_of = [](const std::vector<ModelUnit>& uses,
                           bool is_tied,
                           int zero_stage,
                           bool is_first) {
    std::vector<ParameterRow> rows;
    for (const ModelUnit& use : uses) {
      rows.emplace_back();
      rows.back().place = use.place;
      rows.back().layer = use.layer;
    }
    if (is_tied)
      rows.front().tied_head = "lm_head.weight";
    return divide_into_units(rows, {.is_first = is_first}, zero_stage);
  };
  EXPECT_THAT(
      units_of(
          {embedding, layer(0), layer(0), layer(1), head, head},
          /*is_tied=*/false,
          /*zero_stage=*/3,
          /*is_first=*/true),
      ElementsAre(
          Pair(embedding, 0),
          Pair(layer(0), 1),
          Pair(layer(1), 2),
          Pair(head, 3)));
  const auto tied_units = [&](int zero_stage, bool is_first) {
    return units_of({embedding, layer(0), head}, true, zero_stage, is_first);
  };
  const auto joined =
      ElementsAre(Pair(embedding, 0), Pair(layer(0), 1), Pair(head, 0));
  EXPECT_THAT(tied_units(3, /*is_first=*/true), joined);
  EXPECT_THAT(tied_units(1, /*is_first=*/false), joined);
  EXPECT_THAT(
      tied_units(1, /*is_first=*/true),
      ElementsAre(Pair(embedding, 0), Pair(layer(0), 1), Pair(head, 2)));
}

TEST(ZeroStage3, HoldsTheWeightsOfTwoUnits) {
  TrainConfig config;
  config.model.decoder =
      parsed_config(testing::tiny_run("none")["model"]["config"]);
  config.distributed.zero_stage = 3;
  config.distributed.dims.dp = 2;
  testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh({.dp = 2}, rank, store);
    StageRuntime runtime(
        config,
        model_context(config, mesh),
        mesh,
        0,
        whole_model(*config.model.decoder));
    ShardedWeights& weights = *runtime.sync().weights().units();
    EXPECT_EQ(whole_units(weights), 0);
    const int64_t layers = config.model.decoder->num_hidden_layers;
    EXPECT_EQ(weights.units(), layers + 1);  // its head is tied
    int64_t visited = 0;
    runtime.params().visit([&](const Param& param) {
      EXPECT_LE(whole_units(weights), 2);
      EXPECT_TRUE(param.tensor.isfinite().all().item<bool>()) << param.name;
      visited += param.tensor.numel();
    });
    int64_t numel = 0;
    for (const Param& param : runtime.params().all())
      numel += param.tensor.numel();
    EXPECT_EQ(visited, numel);
    EXPECT_EQ(whole_units(weights), 0);
    const auto ids = torch::arange(48).view({1, 48});
    runtime.hold_reduction();
    runtime.begin_reduction();
    const auto loss =
        runtime.model().forward({ids, ids, {}}, {}, torch::arange(48));
    EXPECT_LE(whole_units(weights), 2);
    loss.backward();
    EXPECT_EQ(whole_units(weights), 0);
    runtime.finish_gradients(mesh);
    runtime.stepper().step(1e-3, 1.0);
  });
}

TEST(ZeroStage3, IsRefusedWithWhatNeedsWholeWeights) {
  const testing::RunsFolder folder;
  testing::write_file(folder / "run.json", testing::tiny_run("none").dump());
  EXPECT_THAT(
      [&] {
        load_train_config(
            {.path = folder / "run.json",
             .overrides =
                 {{"distributed.zero_stage=3"},
                  {"distributed.pp_size=2"},
                  {"training.check_replicas_every=5"}},
             .world_size = 4,
             .find_model = {}});
      },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr(
              "/distributed/zero_stage = 3 with /distributed/pp_size = 2"),
          HasSubstr("/training/check_replicas_every = 5 with "
                    "/distributed/zero_stage = 3"))));
}

}  // namespace
}  // namespace brigade
