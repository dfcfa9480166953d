// Runs that train an adapter beside a base model: what a seed, a split of the
// batch and a continuation make of its dropout, and of its magnitudes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/export_model.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::losses_of;
using Losses = std::vector<double>;

constexpr int kAdapterSteps = 6;

class AdapterRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"gradient_accumulation_steps", 2},
        {"total_train_steps", kAdapterSteps},
        {"learning_rate", 2e-2}};
    config["dataset"]["shuffle"] = false;
    testing::write_file(*folder_ / "run.json", config.dump());
    // A model to begin with.
    train(
        "base",
        {"training.total_train_steps=1", "model.config.initializer_range=0.2"});
    export_checkpoint(run("base"), *folder_ / "model");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static void train(
      const std::string& name,
      std::vector<std::string> overrides,
      int ranks = 1) {
    overrides.push_back("logging.run_dir=" + run(name).string());
    testing::train_as_threads(*folder_ / "run.json", ranks, overrides);
  }
  // Beside the base model, with an adapter of every linear.
  static Losses train_adapter(
      const std::string& name,
      const std::vector<std::string>& more,
      int ranks = 1) {
    std::vector<std::string> overrides = {
        "model.config=null",
        "model.init=pretrained",
        "model.name=" + (*folder_ / "model").string(),
        "adapter.rank=4",
        "adapter.alpha=32",
        "adapter.targets=all-linear"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    train(name, overrides, ranks);
    return losses_of(run(name));
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* AdapterRun::folder_ = nullptr;

TEST_F(AdapterRun, DropoutFollowsSeedAndRateAndNotTheSplitOfTheBatch) {
  const Losses none = train_adapter("none", {});
  EXPECT_THAT(
      train_adapter("zero", {"adapter.dropout=0"}), ElementsAreArray(none));
  const Losses some = train_adapter("some", {"adapter.dropout=0.4"});
  // B is zero in the first step, whatever A reads.
  EXPECT_EQ(some[0], none[0]);
  EXPECT_NE(some[2], none[2]);
  const Losses split = train_adapter(
      "split",
      {"adapter.dropout=0.4",
       "training.micro_batch_size=2",
       "distributed.dp_size=2"},
      2);
  EXPECT_LT(testing::largest_relative_difference(split, some), 1e-5);
  EXPECT_GT(testing::largest_relative_difference(some, none), 1e-3);
}

// Continued, so that A begins with the same values.
TEST_F(AdapterRun, AnotherSeedDropsOthers) {
  train_adapter("seeded", {"checkpoint.save_frequency=3"});
  const auto continued = [](const std::string& dropout,
                            const std::string& seed) {
    return train_adapter(
        "seeded_on",
        {"checkpoint.load_path=" +
             (run("seeded") / "checkpoints" / "3").string(),
         "checkpoint.allow_changes=[\"training.seed\"]",
         "adapter.dropout=" + dropout,
         "training.seed=" + seed});
  };
  EXPECT_THAT(continued("0", "7"), ElementsAreArray(continued("0", "42")));
  EXPECT_NE(continued("0.4", "7")[0], continued("0.4", "42")[0]);
}

TEST_F(AdapterRun, EveryOptimizerStepsMagnitudes) {
  for (const char* optimizer : {"muon", "sgd"}) {
    const Losses losses = train_adapter(
        "optimizer",
        {"adapter.use_dora=true",
         fmt::format("training.optimizer={}", optimizer),
         "training.learning_rate=1e-3"});
    EXPECT_NE(losses.back(), losses.front()) << optimizer;
  }
}

TEST_F(AdapterRun, ContinuesWithTheMasksAndMagnitudesOfAWholeRun) {
  for (const char* form : {"adapter.dropout=0.4", "adapter.use_dora=true"}) {
    const Losses whole =
        train_adapter("whole", {form, "checkpoint.save_frequency=3"});
    const std::vector<std::string> on = {
        form,
        "checkpoint.load_path=" +
            (run("whole") / "checkpoints" / "3").string()};
    const Losses exact = train_adapter("continued", on);
    EXPECT_THAT(exact, ElementsAreArray(whole.begin() + 3, whole.end()))
        << form;
    std::vector<std::string> divided = on;
    divided.insert(
        divided.end(), {"distributed.tp_size=2", "distributed.pp_size=2"});
    EXPECT_LT(
        testing::largest_relative_difference(
            train_adapter("divided", divided, 4), exact),
        1e-5)
        << form;
  }
}

TEST_F(AdapterRun, OfExpertsAndRoutersContinuesUnderAnotherDivision) {
  train(
      "base_of_experts",
      {"training.total_train_steps=1",
       R"(model.config.architectures=["MixtralForCausalLM"])",
       "model.config.model_type=mixtral",
       "model.config.num_local_experts=4",
       "model.config.num_experts_per_tok=2",
       "model.config.initializer_range=0.2"});
  export_checkpoint(run("base_of_experts"), *folder_ / "experts");
  const std::vector<std::string> common = {
      "model.name=" + (*folder_ / "experts").string(),
      "adapter.dropout=0.4",
      "training.router_aux_loss=0"};
  const auto train_experts = [&](const std::string& name,
                                 const std::vector<std::string>& more,
                                 int ranks = 1) {
    std::vector<std::string> all = common;
    all.insert(all.end(), more.begin(), more.end());
    return train_adapter(name, all, ranks);
  };
  const Losses whole =
      train_experts("of_experts", {"checkpoint.save_frequency=3"});
  const Losses attention = train_experts(
      "of_attention",
      {R"(adapter.targets=["q_proj","k_proj","v_proj","o_proj"])"});
  EXPECT_EQ(attention[0], whole[0]);
  EXPECT_GT(testing::largest_relative_difference(attention, whole), 1e-3);
  const std::string load = "checkpoint.load_path=" +
                           (run("of_experts") / "checkpoints" / "3").string();
  EXPECT_THAT(
      train_experts("on", {load}),
      ElementsAreArray(whole.begin() + 3, whole.end()));
  const Losses divided = train_experts(
      "on_divided",
      {load,
       "training.micro_batch_size=2",
       "distributed.dp_size=2",
       "distributed.ep_size=2",
       "distributed.zero_stage=2"},
      2);
  EXPECT_LT(
      testing::largest_relative_difference(
          divided, {whole.begin() + 3, whole.end()}),
      1e-5);
}

TEST_F(AdapterRun, KeepsMomentsInFewBitsAlikeUnderZeroAndAmongGroups) {
  for (const std::string dtype : {"int8", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const auto train_two = [&](const std::string& name,
                               std::vector<std::string> more) {
      // One micro-batch: those of several are summed in another order.
      more.insert(
          more.end(),
          {"training.optimizer_state_dtype=" + dtype,
           "training.gradient_accumulation_steps=1",
           "checkpoint.save_frequency=3"});
      return train_adapter(name, more, 2);
    };
    const auto load = [](const std::string& name) {
      return "checkpoint.load_path=" +
             (run(name) / "checkpoints" / "3").string();
    };
    const Losses expected = train_two("zero0", {});
    EXPECT_NE(expected, train_adapter("wide", {}));
    for (const int stage : {1, 2, 3}) {
      const std::string zero = fmt::format("distributed.zero_stage={}", stage);
      const std::string name = fmt::format("zero{}", stage);
      EXPECT_THAT(train_two(name, {zero}), ElementsAreArray(expected));
      EXPECT_THAT(
          train_two(name + "-on", {zero, load("zero0")}),
          ElementsAreArray(expected.begin() + 3, expected.end()));
    }
    const std::string local = "distributed.local_steps=3";
    const Losses groups = train_two("groups", {local});
    EXPECT_THAT(
        train_two("groups-on", {local, load("groups")}),
        ElementsAreArray(groups.begin() + 3, groups.end()));
  }
}

TEST_F(AdapterRun, DropoutMayChangeAndMagnitudesMayNot) {
  train_adapter("changes", {"checkpoint.save_frequency=3"});
  const std::string load =
      "checkpoint.load_path=" + (run("changes") / "checkpoints" / "3").string();
  EXPECT_EQ(
      train_adapter("changed", {load, "adapter.dropout=0.4"}).size(),
      size_t{kAdapterSteps - 3});
  try {
    train_adapter("refused", {load, "adapter.use_dora=true"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("adapter.use_dora"));
  }
}

TEST_F(AdapterRun, WhatMagnitudesDoNotTakeIsRefusedByName) {
  const auto refusal = [](const std::vector<std::string>& more) {
    try {
      train_adapter("refused", more);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(
      refusal({"adapter.use_dora=true", "adapter.dropout=0.1"}),
      HasSubstr("/adapter/use_dora with /adapter/dropout = 0.1"));
  EXPECT_THAT(
      refusal({"adapter.use_dora=true", "model.dtype=bfloat16"}),
      HasSubstr("/adapter/use_dora with /model/dtype = \"bfloat16\""));
  EXPECT_THAT(refusal({"adapter.dropout=1"}), HasSubstr("/adapter/dropout"));
}

}  // namespace
}  // namespace brigade
