// What compressed gradients lost is in checkpoints.
#include "brigade/train/wire_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using ::testing::Not;

class WireCheckpoint : public ::testing::TestWithParam<std::string> {
 protected:
  WireCheckpoint() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(24000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 2},
        {"gradient_accumulation_steps", 2},
        {"total_train_steps", 6},
        {"learning_rate", 5e-3}};
    config["distributed"]["grad_wire"] = GetParam();
    config["checkpoint"]["save_frequency"] = 3;
    testing::write_file(folder_ / "run.json", config.dump());
  }
  fs::path checkpoint(const std::string& name, int step) const {
    return folder_ / name / "checkpoints" / std::to_string(step);
  }
  // A run "continued" of "whole" from its third step on.
  Arguments continued(Arguments overrides) const {
    overrides.push_back(
        "checkpoint.load_path=" + checkpoint("whole", 3).string());
    return overrides;
  }
  void train(const std::string& name, int ranks, Arguments overrides) const {
    overrides.push_back("logging.run_dir=" + (folder_ / name).string());
    testing::train_as_threads(folder_ / "run.json", ranks, overrides);
  }
  std::string events_of(const std::string& name) const {
    return testing::read_file(folder_ / name / "events.jsonl");
  }

  testing::RunsFolder folder_;
};

struct WireLayout {
  int ranks;
  Arguments overrides;
};

TEST_P(WireCheckpoint, MakesAContinuedRunTheUndisturbedOneBitForBit) {
  for (const WireLayout& layout : {
           WireLayout{2, {}},
           WireLayout{4, {"distributed.tp_size=2", "model.dtype=bfloat16"}},
           WireLayout{
               4,
               {"distributed.pp_size=2",
                "distributed.pp_virtual_stages=2",
                "distributed.pp_engine=interleaved_1f1b"}},
       }) {
    train("whole", layout.ranks, layout.overrides);
    train("continued", layout.ranks, continued(layout.overrides));
    EXPECT_THAT(events_of("continued"), Not(HasSubstr("is dropped")));
    const auto losses = losses_of(folder_ / "whole");
    ASSERT_EQ(losses.size(), 6U);
    EXPECT_EQ(
        losses_of(folder_ / "continued"),
        std::vector<double>(losses.begin() + 3, losses.end()));
    const Checkpoint whole(checkpoint("whole", 6));
    const Checkpoint again(checkpoint("continued", 6));
    ASSERT_EQ(whole.names(), again.names());
    for (const std::string& name : whole.names())
      EXPECT_TRUE(torch::equal(whole.read_whole(name), again.read_whole(name)))
          << name;
    float largest = 0;
    for (const std::string& name : whole.names()) {
      if (name.starts_with("wire.1.errors."))
        largest =
            std::max(largest, whole.read_whole(name).abs().max().item<float>());
    }
    EXPECT_GT(largest, 0);
  }
}

TEST_P(WireCheckpoint, IsDroppedWithItsReasonWhereTheLayoutIsAnother) {
  train("whole", 2, {});
  const auto expect_dropped =
      [&](int ranks, const Arguments& overrides, const std::string& reason) {
        train("continued", ranks, continued(overrides));
        EXPECT_THAT(
            events_of("continued"),
            HasSubstr("lost before the checkpoint is dropped (" + reason));
        EXPECT_EQ(losses_of(folder_ / "continued").size(), 3U);
      };
  expect_dropped(4, {}, "distributed.dp_size was 2 when saved, and is 4 now");
  expect_dropped(
      4,
      {"distributed.tp_size=2"},
      "distributed.tp_size was 1 when saved, and is 2 now");
  expect_dropped(
      2, {"distributed.grad_wire=fp32"}, "distributed.grad_wire was");
  expect_dropped(
      2, {"distributed.bucket_order=observed"}, "distributed.bucket_order = ");
  train("whole", 2, {"distributed.grad_wire=bf16"});
  expect_dropped(2, {}, "the checkpoint has none");
  // The errors of sums over all ranks are none of sums over a group.
  Arguments groups = {
      "distributed.local_steps=2",
      "distributed.local_groups=2",
      "distributed.local_warmup_steps=4"};
  train("whole", 4, groups);
  groups.emplace_back("distributed.local_warmup_interval=2");
  expect_dropped(4, groups, "the warm-up of low-communication training is");
}

INSTANTIATE_TEST_SUITE_P(
    Wires,
    WireCheckpoint,
    ::testing::Values("int8", "powersgd"),
    [](const auto& wire) { return wire.param; });

}  // namespace
}  // namespace brigade
