// Whole training steps on the meta device, whose tensors have shapes and no
// values: code that reads one on the host fails, as it would hold up a GPU.
// One rank of a layout at a time; its peers are imagined.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/run/run_options.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/recording_communicator.h"

namespace brigade {
namespace {

using testing::LaunchLedger;

struct MetaLayout {
  std::string name;
  std::vector<std::string> overrides;
  int ranks = 2;
  // Gathers of weights for the next step that are under way after a step.
  int early_gathers = 0;
};

// By the test's name.
const std::vector<MetaLayout>& meta_layouts() {
  static const std::vector<MetaLayout> kLayouts = {
      {"OneRank", {}, 1},
      {"Bf16", {"model.dtype=bfloat16"}, 1},
      {"Recomputed", {"training.recompute=full"}, 1},
      {"DataParallel", {"distributed.dp_size=2"}},
      {"PerParameter",
       {"distributed.dp_size=2", "distributed.grad_sync=per_param"}},
      {"Bf16OnTheWire",
       {"distributed.dp_size=2", "distributed.grad_wire=bf16"}},
      {"Zero1", {"distributed.dp_size=2", "distributed.zero_stage=1"}},
      {"Zero2", {"distributed.dp_size=2", "distributed.zero_stage=2"}},
      {"Zero3", {"distributed.dp_size=2", "distributed.zero_stage=3"}, 2, 2},
      {"TensorParallel", {"distributed.tp_size=2"}},
      {"SequenceParallel",
       {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {"ReplicatedKeys", {"distributed.tp_size=4"}, 4},
      {"Pipeline", {"distributed.pp_size=2"}},
      {"Interleaved",
       {"distributed.pp_size=2",
        "distributed.pp_engine=interleaved_1f1b",
        "distributed.pp_virtual_stages=2"}},
      {"ZeroBubble",
       {"distributed.pp_size=2", "distributed.pp_engine=zero_bubble"}},
      {"ContextParallel", {"distributed.cp_size=2"}},
      {"AllAtOnce",
       {"distributed.dp_size=2",
        "distributed.tp_size=2",
        "distributed.pp_size=2",
        "distributed.cp_size=2",
        "distributed.zero_stage=1",
        "model.dtype=bfloat16"},
       16}};
  return kLayouts;
}

class MetaDevice : public ::testing::TestWithParam<MetaLayout> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::RunsFolder>();
    dataset_ = testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(24000));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static TrainConfig config_of(const MetaLayout& layout) {
    auto file = testing::tiny_run(dataset_);
    file["training"]["gradient_accumulation_steps"] = 4;
    file["training"]["grad_clip"] = 0.5;
    LoadOptions options;
    options.path = "run.json";
    options.world_size = layout.ranks;
    for (const std::string& text : layout.overrides)
      options.overrides.push_back({text});
    return parse_train_config(file.dump(), options).config;
  }

  static inline std::unique_ptr<testing::RunsFolder> folder_;
  static inline std::string dataset_;
};

TEST_P(MetaDevice, AStepReadsTheDeviceOnceAndWaitsForAllThatItLaunched) {
  const TrainConfig config = config_of(GetParam());
  const TrainingData data = open_training_data(training_data_options(config));
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const auto ledger = std::make_shared<LaunchLedger>();
    const ProcessMesh mesh(
        config.parallel_dims(),
        rank,
        nullptr,
        {.device = torch::kMeta},
        testing::recording_backend(ledger));
    int reads = 0;
    auto step = std::make_unique<TrainStep>(
        config, mesh, data, [&](const torch::Tensor& values) {
          EXPECT_TRUE(values.is_meta());
          ++reads;
          return std::vector<double>(static_cast<size_t>(values.numel()), 1.0);
        });
    const int64_t before = ledger->launches;
    for (int64_t i = 1; i <= 2; ++i) {
      step->run(i);
      EXPECT_EQ(reads, i);
    }
    if (GetParam().ranks > 1) {
      EXPECT_GT(ledger->launches, before);
    }
    for (const auto& stage : step->stages())
      stage->sync().weights().need_all();
    EXPECT_EQ(ledger->waited, ledger->launches - GetParam().early_gathers);
    EXPECT_EQ(ledger->waited_on_host, 0);
    for (const auto& stage : step->stages()) {
      for (const Param& param : stage->sync().params())
        EXPECT_TRUE(param.tensor.is_meta()) << param.name;
    }
    step.reset();
    EXPECT_EQ(ledger->waited, ledger->launches);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    MetaDevice,
    ::testing::ValuesIn(meta_layouts()),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace brigade
