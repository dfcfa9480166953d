// A checkpoint saved under any layout holds the same tensors, and fills any
// other: each tensor and each moment is compared, bit for bit.
// BRIGADE_ALL_LAYOUTS=K takes every layout of up to 8 ranks instead of some,
// and loads under each of them one of K that were saved: 1 takes all 23,409
// pairs and three quarters of an hour. K is odd: neighbours hold other values.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/run/resume_check.h"
#include "brigade/run/run_options.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

struct Layout {
  std::string name;
  ParallelDims dims;
  std::vector<std::string> overrides;
};

// Every layout of up to 8 ranks that the model and its sequences can be cut
// into, with every way of sharding the optimizer.
std::vector<Layout> all_layouts() {
  std::vector<Layout> all;
  for (int world = 1; world <= 8; ++world) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 3, 4}) {
        for (const int cp : {1, 2, 3, 4, 6, 8}) {
          const int rest = tp * pp * cp;
          if (world % rest != 0)
            continue;
          const ParallelDims dims{
              .dp = world / rest, .tp = tp, .pp = pp, .cp = cp};
          const int replicas = dims.dp * cp;
          const int last_stage = replicas == 1 ? 0 : pp == 1 ? 3 : 2;
          for (int zero = 0; zero <= last_stage; ++zero) {
            all.push_back(
                {fmt::format(
                     "dp{}_tp{}_pp{}_cp{}_zero{}", dims.dp, tp, pp, cp, zero),
                 dims,
                 {fmt::format("distributed.tp_size={}", tp),
                  fmt::format("distributed.pp_size={}", pp),
                  fmt::format("distributed.cp_size={}", cp),
                  fmt::format("distributed.zero_stage={}", zero)}});
          }
        }
      }
    }
  }
  return all;
}

std::vector<Layout> layouts() {
  if (::getenv("BRIGADE_ALL_LAYOUTS") != nullptr)
    return all_layouts();
  const std::string pp = "distributed.pp_size=2";
  const std::string tp = "distributed.tp_size=2";
  const std::string cp = "distributed.cp_size=2";
  const std::string zero1 = "distributed.zero_stage=1";
  const std::string zero2 = "distributed.zero_stage=2";
  const std::string zero3 = "distributed.zero_stage=3";
  return {
      {"one", {}, {}},
      {"dp2", {.dp = 2}, {}},
      {"dp3", {.dp = 3}, {}},
      {"tp2", {.tp = 2}, {tp}},
      {"tp4", {.tp = 4}, {"distributed.tp_size=4"}},
      {"pp2", {.pp = 2}, {pp}},
      {"cp2", {.cp = 2}, {cp}},
      {"dp2_pp2", {.dp = 2, .pp = 2}, {pp}},
      {"dp2_tp2_pp2", {.dp = 2, .tp = 2, .pp = 2}, {tp, pp}},
      {"dp2_cp2_tp2", {.dp = 2, .tp = 2, .cp = 2}, {cp, tp}},
      {"dp2_zero1", {.dp = 2}, {zero1}},
      {"dp3_zero2", {.dp = 3}, {zero2}},
      {"dp2_pp2_zero1", {.dp = 2, .pp = 2}, {pp, zero1}},
      {"dp2_cp2_tp2_zero2", {.dp = 2, .tp = 2, .cp = 2}, {cp, tp, zero2}},
      {"dp3_zero3", {.dp = 3}, {zero3}},
      {"dp2_cp2_tp2_zero3", {.dp = 2, .tp = 2, .cp = 2}, {cp, tp, zero3}}};
}

// With each way of dividing 4 experts.
std::vector<Layout> layouts_of_experts() {
  const std::string ep2 = "distributed.ep_size=2";
  const std::string ep4 = "distributed.ep_size=4";
  const std::string cp = "distributed.cp_size=2";
  return {
      {"one", {}, {}},
      {"dp2", {.dp = 2}, {}},
      {"dp2_ep2", {.dp = 2, .ep = 2}, {ep2}},
      {"cp2_ep2_zero1",
       {.cp = 2, .ep = 2},
       {cp, ep2, "distributed.zero_stage=1"}},
      {"dp4_ep4", {.dp = 4, .ep = 4}, {ep4}},
      {"dp4_ep2_zero3", {.dp = 4, .ep = 2}, {ep2, "distributed.zero_stage=3"}},
      {"dp2_pp2_ep2",
       {.dp = 2, .pp = 2, .ep = 2},
       {"distributed.pp_size=2", ep2}},
      {"dp2_cp2_tp2_ep4_zero2",
       {.dp = 2, .tp = 2, .cp = 2, .ep = 4},
       {cp, "distributed.tp_size=2", ep4, "distributed.zero_stage=2"}}};
}

size_t pairs_per_loaded_one() {
  const char* text = ::getenv("BRIGADE_ALL_LAYOUTS");
  return text == nullptr ? 1 : std::stoul(text);
}

struct StoredModel {
  std::string name;
  std::string dtype;
  bool has_experts = false;
};

class CheckpointLayouts : public ::testing::TestWithParam<StoredModel> {
 protected:
  CheckpointLayouts() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["model"]["dtype"] = GetParam().dtype;
    if (GetParam().has_experts)
      config["model"]["config"].update(
          {{"architectures", {"MixtralForCausalLM"}},
           {"model_type", "mixtral"},
           {"num_local_experts", 4},
           {"num_experts_per_tok", 2}});
    config["training"]["total_train_steps"] = 2;
    config["training"]["gradient_accumulation_steps"] = 2;
    testing::write_file(folder_ / "run.json", config.dump());
    // Weights that were updated, moments that are not zero. Two of them, so
    // that what a load leaves out is found: it holds what the last load left.
    for (const char* seed : {"1", "2"}) {
      const fs::path run = folder_ / seed;
      testing::train_as_threads(
          folder_ / "run.json",
          1,
          {"logging.run_dir=" + run.string(),
           std::string("training.seed=") + seed});
      sources_.push_back(run / "checkpoints" / "2");
    }
  }

  struct Passed {
    fs::path from;
    fs::path to;
    fs::path source;  // what both must hold
  };
  // Loads each checkpoint and saves it again, all under `layout`.
  void pass_through(const Layout& layout, const std::vector<Passed>& all) {
    LoadOptions options{
        .path = folder_ / "run.json",
        .overrides = {},
        .world_size = layout.dims.world_size(),
        .find_model = {}};
    for (const std::string& text : layout.overrides)
      options.overrides.push_back({text});
    const TrainConfig config = load_train_config(options).config;
    testing::run_ranks_with_store(
        options.world_size, [&](int rank, const StorePtr& store) {
          const ProcessMesh mesh(layout.dims, rank, store);
          const TrainingData data =
              open_training_data(training_data_options(config));
          TrainStep step(config, mesh, data);
          for (size_t i = 0; i < all.size(); ++i) {
            const LoadedRun loaded = load_run(all[i].from, step);
            EXPECT_EQ(loaded.position.steps, 2);
            SaveRanks ranks;
            ranks.rank = ranks.writer = rank;
            ranks.world_size = options.world_size;
            ranks.store = options.world_size == 1 ? nullptr : store;
            ranks.save_key = fmt::format("save {}", i);
            save_checkpoint(
                all[i].to,
                checkpoint_of(
                    config,
                    mesh,
                    step,
                    describe_data(config, data),
                    loaded.position,
                    loaded.run),
                ranks);
            // The others cannot save over it: rank 0 begins every save.
            if (rank == 0)
              expect_same(all[i]);
          }
        });
  }

  void expect_same(const Passed& passed) const {
    SCOPED_TRACE(passed.from.string());
    const Checkpoint expected(passed.source);
    const Checkpoint actual(passed.to);
    ASSERT_EQ(actual.names(), expected.names());
    EXPECT_EQ(actual.manifest().step, expected.manifest().step);
    EXPECT_EQ(actual.manifest().samples, expected.manifest().samples);
    for (const std::string& name : expected.names()) {
      EXPECT_TRUE(
          torch::equal(actual.read_whole(name), expected.read_whole(name)))
          << name;
    }
  }

  testing::RunsFolder folder_;
  std::vector<fs::path> sources_;
};

TEST_P(CheckpointLayouts, AnyLayoutLoadsWhatAnyOtherSaved) {
  const std::vector<Layout> tried =
      GetParam().has_experts ? layouts_of_experts() : layouts();
  std::vector<Passed> saved;
  for (const Layout& layout : tried) {
    SCOPED_TRACE("saved under " + layout.name);
    const fs::path& source = sources_[saved.size() % sources_.size()];
    const fs::path to = folder_ / layout.name;
    pass_through(layout, {{source, to, source}});
    // Every rank wrote its share.
    EXPECT_EQ(Checkpoint(to).manifest().writers, layout.dims.world_size());
    saved.push_back({to, folder_ / "again", source});
  }
  ASSERT_FALSE(HasFailure());
  const size_t step = pairs_per_loaded_one();
  size_t index = 0;
  for (const Layout& layout : tried) {
    SCOPED_TRACE("loaded under " + layout.name);
    std::vector<Passed> taken;
    for (size_t i = index++ % step; i < saved.size(); i += step)
      taken.push_back(saved[i]);
    pass_through(layout, taken);
    ASSERT_FALSE(HasFailure());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    CheckpointLayouts,
    ::testing::Values(
        StoredModel{"dense", "float32"},
        StoredModel{"dense_bf16", "bfloat16"},
        StoredModel{"experts", "bfloat16", true}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace brigade
