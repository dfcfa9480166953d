// What a run notes of its routers: the same counts in every layout, every token
// k times, and the layer of a router that is not finite.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "brigade/base/error.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/run/run_options.h"
#include "brigade/train/train_step.h"
#include "tests/support/message_of.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kRouterSteps = 3;
constexpr int kSequences = 8;  // of a step
constexpr int kTokens = 48;    // of a sequence
constexpr int kPerToken = 3;

// Qwen2-MoE with 8 experts in layers 0, 2 and 3.
class RouterUseRun : public ::testing::Test {
 protected:
  RouterUseRun() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    auto& model = config["model"]["config"];
    model["architectures"] = {"Qwen2MoeForCausalLM"};
    model["model_type"] = "qwen2_moe";
    model["num_experts"] = 8;
    model["num_experts_per_tok"] = kPerToken;
    model["moe_intermediate_size"] = 24;
    model["shared_expert_intermediate_size"] = 32;
    model["mlp_only_layers"] = {1};
    config["training"]["total_train_steps"] = kRouterSteps;
    config["training"]["learning_rate"] = 1e-3;
    config["training"]["eval_every"] = 2;
    config["training"]["eval_steps"] = 1;
    testing::write_file(folder_ / "run.json", config.dump());
  }

  // The experts' metrics of each step.
  std::vector<json> experts_of(int ranks, Arguments overrides, int in_step) {
    const fs::path run = folder_ / "run";
    overrides.push_back("logging.run_dir=" + run.string());
    overrides.push_back("training.micro_batch_size=" + std::to_string(in_step));
    testing::train_as_threads(folder_ / "run.json", ranks, overrides);
    std::vector<json> experts;
    for (const json& step : testing::read_metrics(run))
      experts.push_back(step.at("experts"));
    return experts;
  }

  testing::RunsFolder folder_;
};

struct RoutedLayout {
  std::string name;
  int ranks = 2;
  int in_step = 4;  // sequences of a rank and step
  Arguments overrides;
};

void PrintTo(const RoutedLayout& each, std::ostream* out) {
  *out << each.name;
}

class RouterUseLayouts : public RouterUseRun,
                         public ::testing::WithParamInterface<RoutedLayout> {};

TEST_P(RouterUseLayouts, HaveOneRanksCounts) {
  const auto one = experts_of(1, {}, kSequences);
  const auto many =
      experts_of(GetParam().ranks, GetParam().overrides, GetParam().in_step);
  ASSERT_EQ(one.size(), size_t{kRouterSteps});
  ASSERT_EQ(many.size(), one.size());
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_EQ(many[step]["layers"], json({0, 2, 3}));
    EXPECT_EQ(many[step]["tokens_per_expert"], one[step]["tokens_per_expert"])
        << step;
    for (size_t layer = 0; layer < 3; ++layer) {
      int64_t sum = 0;
      for (const json& count : many[step]["tokens_per_expert"][layer])
        sum += count.get<int64_t>();
      EXPECT_EQ(sum, kSequences * kTokens * kPerToken);
      const auto norm = one[step]["router_norm"][layer].get<double>();
      EXPECT_GT(norm, 0);
      EXPECT_NEAR(
          many[step]["router_norm"][layer].get<double>(), norm, 1e-6 * norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    RouterUseLayouts,
    ::testing::Values(
        RoutedLayout{
            "micro_batches_recomputed",
            1,
            2,
            {"training.gradient_accumulation_steps=4",
             "training.recompute=full"}},
        RoutedLayout{
            "gradients_checked",
            2,
            4,
            {"distributed.dp_size=2", "training.check_gradients_every=1"}},
        RoutedLayout{
            "ep2_zero3",
            2,
            4,
            {"distributed.dp_size=2",
             "distributed.ep_size=2",
             "distributed.zero_stage=3"}},
        RoutedLayout{
            "cp2_ep2",
            2,
            8,
            {"distributed.cp_size=2", "distributed.ep_size=2"}},
        RoutedLayout{
            "tp2_sp",
            2,
            8,
            {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
        RoutedLayout{
            "dp2_pp2_interleaved",
            4,
            1,
            {"distributed.dp_size=2",
             "distributed.pp_size=2",
             "distributed.pp_engine=interleaved_1f1b",
             "distributed.pp_virtual_stages=2",
             "training.gradient_accumulation_steps=4"}}),
    [](const auto& each) { return each.param.name; });

TEST_F(RouterUseRun, DroppedChoicesAreEqualInEveryLayout) {
  const std::string factor = "training.expert_capacity_factor=1";
  const auto one = experts_of(1, {factor}, kSequences);
  const auto cp = experts_of(
      2,
      {factor, "distributed.cp_size=2", "distributed.ep_size=2"},
      kSequences);
  const auto tp = experts_of(
      4,
      {factor,
       "distributed.dp_size=2",
       "distributed.tp_size=2",
       "distributed.sequence_parallel=true",
       "training.recompute=full"},
      kSequences / 2);
  for (size_t step = 0; step < one.size(); ++step) {
    // An expert's room in all sequences together is at most what even use
    // needs.
    int64_t above = 0;
    for (const json& layer : one[step]["tokens_per_expert"]) {
      for (const json& chosen : layer)
        above += std::max<int64_t>(
            0, chosen.get<int64_t>() - kSequences * kTokens * kPerToken / 8);
    }
    EXPECT_GT(above, 0);
    EXPECT_GE(one[step]["dropped"].get<int64_t>(), above);
    EXPECT_LT(
        one[step]["dropped"].get<int64_t>(),
        3 * kSequences * kTokens * kPerToken);
    EXPECT_EQ(cp[step]["dropped"], one[step]["dropped"]) << step;
    EXPECT_EQ(tp[step]["dropped"], one[step]["dropped"]) << step;
    EXPECT_EQ(cp[step]["tokens_per_expert"], one[step]["tokens_per_expert"]);
  }
}

// With a rate of 0 the weights stay: an evaluation, which drops nothing, finds
// the same; a capacity that is enough changes no bit of a step.
TEST_F(RouterUseRun, ACapacityAppliesToTrainingAlone) {
  const auto lines = [&](const Arguments& overrides) {
    experts_of(1, overrides, kSequences);
    return testing::read_metrics(folder_ / "run");
  };
  const std::string still = "training.learning_rate=0";
  const auto without = lines({still});
  const auto narrow = lines({still, "training.expert_capacity_factor=0.5"});
  const auto wide = lines({still, "training.expert_capacity_factor=2.7"});
  EXPECT_NE(narrow[0]["loss"], without[0]["loss"]);
  EXPECT_EQ(narrow[1]["eval_loss"], without[1]["eval_loss"]);
  EXPECT_EQ(wide[0]["loss"], without[0]["loss"]);
  EXPECT_EQ(wide[0]["grad_norm"], without[0]["grad_norm"]);
  EXPECT_EQ(wide[0]["experts"]["dropped"], 0);
}

// Every step has the same tokens and, without a rate, the same choices.
TEST_F(RouterUseRun, AnExpertWithoutTokensIsNamedInEveryLayout) {
  constexpr int kIdle = IdleExperts::kSteps;
  constexpr int kSaved = 3;
  const Arguments common = {
      "dataset.name=" + testing::prepare_bytes(
                            folder_ / "few",
                            testing::made_up_text(kSequences * 4 + 1),
                            {"--no-append-eos"}),
      "training.seq_length=4",
      "training.learning_rate=0",
      "training.eval_every=0",
      "training.total_train_steps=" + std::to_string(kIdle + kSaved),
      "model.config.num_experts=32",
      "model.config.num_hidden_layers=2",
      "model.config.mlp_only_layers=[]"};
  const auto named_by = [&](const std::string& name,
                            const RoutedLayout& layout) {
    Arguments overrides = common;
    overrides.push_back("logging.run_dir=" + (folder_ / name).string());
    overrides.push_back(
        "training.micro_batch_size=" + std::to_string(layout.in_step));
    overrides.insert(
        overrides.end(), layout.overrides.begin(), layout.overrides.end());
    testing::train_as_threads(
        folder_ / "run.json",
        layout.ranks,
        overrides,
        [&](int /*rank*/, int64_t step) {
          return StepRequests{.save = step == kSaved};
        });
    std::vector<std::string> texts;
    std::istringstream events(
        testing::read_file(folder_ / name / "events.jsonl"));
    for (std::string line; std::getline(events, line);) {
      const std::string text = json::parse(line).value("text", "");
      if (text.find("got no token") != std::string::npos)
        texts.push_back(text);
    }
    return texts;
  };
  const auto expected_at = [&](const std::string& name, int step) {
    std::vector<std::string> texts;
    const json last = testing::read_metrics(folder_ / name).back()["experts"];
    for (size_t i = 0; i < last["layers"].size(); ++i) {
      for (size_t expert = 0; expert < 32; ++expert) {
        if (last["tokens_per_expert"][i][expert] == 0)
          texts.push_back(fmt::format(
              "step {}: expert {} of layer {} got no token in the last {} "
              "steps; raise training.router_aux_loss if it should be used",
              step,
              expert,
              last["layers"][i].get<int>(),
              kIdle));
      }
    }
    return texts;
  };
  const auto named = named_by("whole", {"whole", 1, kSequences, {}});
  EXPECT_THAT(named, Not(IsEmpty()));
  EXPECT_EQ(named, expected_at("whole", kIdle));
  EXPECT_EQ(
      named_by(
          "divided",
          {"divided",
           4,
           kSequences / 2,
           {"distributed.dp_size=2",
            "distributed.pp_size=2",
            "distributed.ep_size=2"}}),
      named);
  // A continued run counts from zero.
  EXPECT_EQ(
      named_by(
          "continued",
          {"continued",
           1,
           kSequences,
           {"checkpoint.load_path=" +
            (folder_ / "whole" / "checkpoints" / std::to_string(kSaved))
                .string()}}),
      expected_at("whole", kIdle + kSaved));
}

// One of two ranks has a router that is not finite, and both say which.
TEST_F(RouterUseRun, ARouterThatIsNotFiniteIsNamedByLayerAndStep) {
  for (const char* axis : {"dp", "cp", "tp"}) {
    LoadOptions options{
        .path = folder_ / "run.json",
        .overrides = {{fmt::format("distributed.{}_size=2", axis)}},
        .world_size = 2,
        .find_model = {}};
    const TrainConfig config = load_train_config(options).config;
    for (const int broken : {0, 1}) {
      std::vector<std::string> errors(2);
      testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
        ProcessMesh mesh(config.parallel_dims(), rank, store);
        mesh.divide_replicas(1);
        const TrainingData data =
            open_training_data(training_data_options(config));
        TrainStep step(config, mesh, data);
        step.run(1);
        torch::NoGradGuard no_grad;
        if (rank == broken)
          step.stages()
              .front()
              ->model()
              .named_parameters()["model.layers.2.mlp.gate.weight"]
              .fill_(std::nan(""));
        errors[static_cast<size_t>(rank)] =
            message_of<NumericError>([&] { step.run(2); });
      });
      for (const std::string& error : errors)
        EXPECT_THAT(
            error,
            HasSubstr("step 2: the router of layer 2 gave weights that are not "
                      "finite, as its weight is not; nothing was updated"))
            << axis << " " << broken;
    }
  }
}

}  // namespace
}  // namespace brigade
