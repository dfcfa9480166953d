// Runs that train an adapter beside a base model: what a seed, a split of the
// batch and a continuation make of its dropout, and of its magnitudes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/export_model.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::losses_of;
using ::testing::ThrowsMessage;
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
  // Trains an adapter of every linear of the base model.
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

  // The magnitudes of all linears, as a checkpoint stores them.
  static torch::Tensor magnitudes_of(
      const std::string& name,
      const std::string& step) {
    const Checkpoint checkpoint(run(name) / "checkpoints" / step);
    std::vector<torch::Tensor> all;
    for (const std::string& stored : checkpoint.names()) {
      if (stored.starts_with("model.") && stored.ends_with("magnitude_vector"))
        all.push_back(checkpoint.read_whole(stored));
    }
    return torch::cat(all);
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

TEST_F(AdapterRun, ExpertsAndRoutersContinueUnderAnotherDivision) {
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
  EXPECT_THAT(
      [&] {
        export_checkpoint(
            run("of_experts"),
            *folder_ / "fused",
            {.experts = ExpertTensors::kFused});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("--experts fused"), HasSubstr("with --merge"))));
  export_checkpoint(
      run("of_experts"), *folder_ / "merged", {.merges_adapter = true});
  export_checkpoint(
      run("of_experts"),
      *folder_ / "fused",
      {.merges_adapter = true, .experts = ExpertTensors::kFused});
  export_folder(*folder_ / "fused", *folder_ / "apart");
  EXPECT_EQ(
      read_text_file(*folder_ / "apart" / kSafetensorsFile),
      read_text_file(*folder_ / "merged" / kSafetensorsFile));
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

TEST_F(AdapterRun, KeepsMomentsInFewBitsUnderZeroAndAmongGroups) {
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
  EXPECT_THAT(
      [&] {
        train_adapter("refused", {load, "adapter.use_dora=true"});
      },
      ThrowsMessage<Error>(HasSubstr("adapter.use_dora")));
}

// The average is what an evaluation sees and a checkpoint stores.
TEST_F(AdapterRun, AnAverageOfMagnitudesIsStoredAndContinued) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const std::vector<std::string> form = {
        "adapter.use_dora=true",
        fmt::format("model.dtype={}", dtype),
        "training.ema_decay=0.5",
        "training.eval_every=3",
        "training.eval_steps=1",
        "dataset.eval_fraction=0.2",
        "checkpoint.save_frequency=3"};
    const std::string name = fmt::format("average_{}", dtype);
    const Losses whole = train_adapter(name, form);
    auto more = form;
    more.push_back(
        "checkpoint.load_path=" + (run(name) / "checkpoints" / "3").string());
    const auto saved = magnitudes_of(name, "3");
    more.emplace_back("distributed.tp_size=2");
    const Losses continued = train_adapter(name + "_on", more, 2);
    EXPECT_LT(
        testing::largest_relative_difference(
            continued, Losses(whole.begin() + 3, whole.end())),
        dtype == std::string("float32") ? 1e-5 : 5e-3);
    // The average of weights that moved is none of them.
    auto plain = form;
    plain[2] = "training.ema_decay=0";
    train_adapter(name + "_plain", plain);
    EXPECT_FALSE(torch::equal(saved, magnitudes_of(name + "_plain", "3")));
    EXPECT_EQ(saved.scalar_type(), torch::kFloat);
  }
}

TEST_F(AdapterRun, MagnitudesOfGroupsAreExchanged) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const std::vector<std::string> form = {
        "adapter.use_dora=true",
        fmt::format("model.dtype={}", dtype),
        "distributed.local_steps=3",
        "checkpoint.save_frequency=3"};
    const Losses groups = train_adapter("groups_dora", form, 2);
    auto more = form;
    more.push_back(
        "checkpoint.load_path=" +
        (run("groups_dora") / "checkpoints" / "3").string());
    EXPECT_THAT(
        train_adapter("groups_dora_on", more, 2),
        ElementsAreArray(groups.begin() + 3, groups.end()));
    auto apart = form;
    apart[2] = "distributed.local_steps=0";
    train_adapter("together_dora", apart, 2);
    const auto exchanged = magnitudes_of("groups_dora", "6");
    EXPECT_EQ(exchanged.scalar_type(), torch::kFloat);
    EXPECT_FALSE(torch::equal(exchanged, magnitudes_of("groups_dora", "3")));
    EXPECT_FALSE(torch::equal(exchanged, magnitudes_of("together_dora", "6")));
  }
}

TEST_F(AdapterRun, MagnitudesAreFloat32BesideABfloat16Model) {
  const std::vector<std::string> dora = {
      "adapter.use_dora=true", "model.dtype=bfloat16"};
  const Losses wide = train_adapter("dora_wide", {dora[0]});
  const Losses narrow = train_adapter("dora_narrow", dora);
  EXPECT_LT(testing::largest_relative_difference(narrow, wide), 2e-2);
  EXPECT_EQ(
      magnitudes_of("dora_narrow", fmt::to_string(kAdapterSteps)).scalar_type(),
      torch::kFloat);
}

TEST_F(AdapterRun, DropoutBesideMagnitudesFollowsTheSplitOfNothing) {
  const std::string dora = "adapter.use_dora=true";
  const std::string dropout = "adapter.dropout=0.4";
  const Losses none = train_adapter("dora_none", {dora});
  const Losses some = train_adapter(
      "dora_some", {dora, dropout, "checkpoint.save_frequency=3"});
  // B is zero and magnitudes are norms in the first step.
  EXPECT_NEAR(some[0], none[0], 1e-5);
  EXPECT_GT(testing::largest_relative_difference(some, none), 1e-3);
  EXPECT_LT(
      testing::largest_relative_difference(
          train_adapter(
              "dora_split",
              {dora,
               dropout,
               "training.micro_batch_size=2",
               "distributed.dp_size=2",
               "distributed.tp_size=2"},
              4),
          some),
      1e-5);
  EXPECT_THAT(
      train_adapter(
          "dora_some_on",
          {dora,
           dropout,
           "checkpoint.load_path=" +
               (run("dora_some") / "checkpoints" / "3").string()}),
      ElementsAreArray(some.begin() + 3, some.end()));
}

TEST_F(AdapterRun, ADropoutThatLeavesNothingIsRefused) {
  EXPECT_THAT(
      [&] { train_adapter("refused", {"adapter.dropout=1"}); },
      ThrowsMessage<Error>(HasSubstr("/adapter/dropout")));
}

// The base has none; what is talked to has the template of the data.
TEST_F(AdapterRun, AMergedModelHasTheTokenizerItWasTrainedWith) {
  const std::string tokens = (*folder_ / "pieces").string();
  const auto prepared = testing::run_program(
      {"prepare",
       "--input",
       (*folder_ / "tokens.txt").string(),
       "--tokenizer",
       BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/t5_like.json",
       "--out",
       tokens});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  testing::write_file(tokens + ".tokenizer/chat_template.jinja", "{{ 1 }}");
  train_adapter("talks", {"dataset.name=" + tokens});
  const fs::path merged = *folder_ / "talks_merged";
  export_checkpoint(run("talks"), merged, {.merges_adapter = true});
  for (const char* name : {"tokenizer.json", "chat_template.jinja"})
    EXPECT_EQ(
        read_text_file(merged / name),
        read_text_file(fs::path(tokens + ".tokenizer") / name));
}

// The path is the same, so that nothing else shows it.
TEST_F(AdapterRun, OtherWeightsOfTheBaseModelAreRefused) {
  train_adapter("beside", {});
  const fs::path file = *folder_ / "model" / kSafetensorsFile;
  const std::string weights = read_text_file(file);
  std::string others = weights;
  others.back() = static_cast<char>(others.back() ^ 1);
  testing::write_file(file, others);
  EXPECT_THAT(
      [&] {
        export_checkpoint(
            run("beside"),
            *folder_ / "beside_merged",
            {.merges_adapter = true});
      },
      ThrowsMessage<DataError>(HasSubstr("was trained beside other weights")));
  EXPECT_THAT(
      [&] {
        train_adapter(
            "beside_on",
            {"checkpoint.load_path=" + run("beside").string(),
             "training.total_train_steps=7"});
      },
      ThrowsMessage<ConfigError>(
          HasSubstr("model.name (its weights' fingerprint)")));
  testing::write_file(file, weights);
}

}  // namespace
}  // namespace brigade
