// Runs whose moments are in fewer bits: the ranges of every layout round the
// same way, a run goes on bit for bit, and checkpoints of one dtype load into
// another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "brigade/checkpoint/checkpoint.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

constexpr const char* kInt8 = "training.optimizer_state_dtype=int8";
constexpr const char* kBf16 = "training.optimizer_state_dtype=bfloat16";

struct MomentsCase {
  std::string name;
  Overrides overrides;
};

void PrintTo(const MomentsCase& each, std::ostream* out) {
  *out << each.name;
}

class MomentsRun : public ::testing::TestWithParam<MomentsCase> {
 protected:
  static constexpr int kSteps = 6;

  MomentsRun() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config["training"]["total_train_steps"] = kSteps;
    config["training"]["gradient_accumulation_steps"] = 2;
    config["training"]["learning_rate"] = 2e-3;
    config["distributed"]["bucket_cap_mb"] = 0.04;
    testing::write_file(folder_ / "run.json", config.dump());
  }

  fs::path checkpoint(const std::string& name, int step = kSteps) {
    return folder_ / name / "checkpoints" / std::to_string(step);
  }
  std::string load(const std::string& name, int step) {
    return "checkpoint.load_path=" + checkpoint(name, step).string();
  }
  void train(const std::string& name, int ranks, const Overrides& more) {
    Overrides overrides = GetParam().overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
    overrides.push_back("checkpoint.save_frequency=3");
    overrides.push_back("logging.run_dir=" + (folder_ / name).string());
    testing::train_as_threads(folder_ / "run.json", ranks, overrides);
  }
  // The largest difference of a tensor, relative to its norm.
  static double difference(const fs::path& a, const fs::path& b) {
    const Checkpoint first(a);
    const Checkpoint second(b);
    EXPECT_EQ(first.names(), second.names());
    double largest = 0;
    for (const std::string& name : first.names()) {
      const auto x = first.read_whole(name).to(torch::kDouble);
      const auto y = second.read_whole(name).to(torch::kDouble);
      const double norm = std::max(1e-12, y.norm().item<double>());
      largest = std::max(largest, (x - y).norm().item<double>() / norm);
    }
    return largest;
  }

  testing::RunsFolder folder_;
};

TEST_P(MomentsRun, HasTheBitsOfStage0InEveryStageOfZero) {
  // One micro-batch: the sums of several are added in another order.
  const auto stage = [&](int number) {
    const std::string name = fmt::format("zero{}", number);
    train(
        name,
        2,
        {fmt::format("distributed.zero_stage={}", number),
         "training.gradient_accumulation_steps=1"});
    return checkpoint(name);
  };
  const fs::path expected = stage(0);
  for (const int number : {1, 2, 3})
    EXPECT_EQ(difference(stage(number), expected), 0) << number;
}

TEST_P(MomentsRun, ContinuesBitForBitUnderAnyStageOfZeroAndTp) {
  const Overrides layouts[] = {
      {"distributed.zero_stage=2"},
      {"distributed.tp_size=2", "distributed.zero_stage=1"}};
  for (size_t i = 0; i < std::size(layouts); ++i) {
    const std::string name = std::to_string(i);
    const int ranks = i == 0 ? 2 : 4;
    train(name, ranks, layouts[i]);
    Overrides on = layouts[i];
    on.push_back(load(name, 3));
    train(name + "-on", ranks, on);
    EXPECT_EQ(difference(checkpoint(name + "-on"), checkpoint(name)), 0);
  }
  train("stage3", 2, {"distributed.zero_stage=3", load("0", 3)});
  EXPECT_EQ(difference(checkpoint("stage3"), checkpoint("0")), 0);
}

TEST_P(MomentsRun, TrainsOnOneRankAboutWhatItTrainsUnderTpAndPp) {
  train("one", 1, {});
  for (const char* layout :
       {"distributed.tp_size=2", "distributed.pp_size=2"}) {
    train("other", 2, {layout});
    // Last bits choose another entry, up to a 70th of its block's largest
    // moment away.
    EXPECT_LT(
        testing::largest_relative_difference(
            testing::losses_of(folder_ / "other"),
            testing::losses_of(folder_ / "one")),
        1e-3)
        << layout;
  }
}

TEST_P(MomentsRun, LoadsFloat32MomentsAndIsLoadedIntoThem) {
  const std::string float32 = "training.optimizer_state_dtype=float32";
  train("narrow", 1, {});
  train("wide", 1, {float32});
  train("to-wide", 1, {float32, load("narrow", 3)});
  train(
      "to-narrow",
      2,
      {load("wide", 3),
       "distributed.zero_stage=2",
       "training.gradient_accumulation_steps=1"});
  for (const char* name : {"narrow", "to-wide", "to-narrow"}) {
    const auto losses = testing::losses_of(folder_ / name);
    EXPECT_NEAR(
        losses.back(), testing::losses_of(folder_ / "wide").back(), 0.02)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    MomentsRun,
    ::testing::Values(
        MomentsCase{"adamw_int8", {kInt8, "model.dtype=float32"}},
        MomentsCase{
            "adamw_int8_mup_and_average",
            {kInt8,
             "training.ema_decay=0.9",
             "training.parametrization=mup",
             "training.mup_base_hidden_size=16",
             "model.dtype=bfloat16"}},
        MomentsCase{"adamw_bf16", {kBf16, "model.dtype=bfloat16"}},
        MomentsCase{
            "muon_int8",
            {kInt8,
             "training.optimizer=muon",
             "training.muon_dtype=float32",
             "model.dtype=bfloat16"}},
        MomentsCase{
            "sgd_bf16",
            {kBf16,
             "training.optimizer=sgd",
             "training.sgd_momentum=0.9",
             "model.dtype=float32"}}),
    [](const auto& each) { return each.param.name; });

using MomentsOfInt8 = MomentsRun;

TEST_P(MomentsOfInt8, AreInCheckpointsAsTheyAreInMemory) {
  train("run", 2, {"distributed.zero_stage=1"});
  const Checkpoint saved(checkpoint("run"));
  int moments = 0;
  for (const CheckpointTensor& tensor : saved.tensors()) {
    if (!tensor.name.starts_with("exp_avg"))
      continue;
    ++moments;
    uint64_t numel = 1;
    for (const uint64_t size : tensor.shape)
      numel *= size;
    EXPECT_EQ(
        tensor.dtype,
        tensor.name.starts_with("exp_avg_sq.") ? SafetensorsDtype::kU8
                                               : SafetensorsDtype::kI8);
    EXPECT_EQ(tensor.size_bytes, numel + 4 * ((numel + 255) / 256))
        << tensor.name;
    EXPECT_TRUE(tensor.is_state && tensor.is_whole);
  }
  EXPECT_GT(moments, 0);
}

TEST_P(MomentsOfInt8, AreExchangedAndMeantAmongGroups) {
  const Overrides groups = {"distributed.local_steps=3"};
  train("groups", 2, groups);
  train("groups-on", 2, {groups[0], load("groups", 3)});
  EXPECT_EQ(difference(checkpoint("groups-on"), checkpoint("groups")), 0);
  train("together", 2, {load("groups", 3)});
  EXPECT_LT(
      testing::losses_of(folder_ / "together").back(),
      testing::losses_of(folder_ / "groups").front());
}

INSTANTIATE_TEST_SUITE_P(
    AdamW,
    MomentsOfInt8,
    ::testing::Values(MomentsCase{"int8", {kInt8, "model.dtype=float32"}}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
