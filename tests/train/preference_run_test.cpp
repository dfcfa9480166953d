// Runs that learn from pairs of a chosen and a rejected answer, by every loss
// and in every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

constexpr int kPairSteps = 10;

class PreferenceRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    const std::string words = testing::made_up_text(4000);
    std::string lines;
    // Answers of 3 to 34 bytes.
    for (size_t i = 0; i < 24; ++i)
      lines +=
          json{
              {"prompt", words.substr(40 * i, 5 + i % 4)},
              {"chosen", words.substr(50 * i + 7, 3 + 7 * i % 29)},
              {"rejected", words.substr(60 * i + 11, 3 + 11 * i % 32)}}
              .dump() +
          "\n";
    testing::write_file(*folder_ / "pairs.jsonl", lines);
    // Texts need none, but the tokenizer of bytes has none to say so.
    testing::write_file(*folder_ / "chat.jinja", "{{ messages }}");
    run(
        {"prepare",
         "--chat",
         (*folder_ / "pairs.jsonl").string(),
         "--template",
         (*folder_ / "chat.jinja").string(),
         "--tokenizer",
         "bytes",
         "--out",
         pairs()});
    auto config = testing::tiny_run(pairs());
    config["model"]["dtype"] = "float32";
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 8},
        {"gradient_accumulation_steps", 1},
        {"total_train_steps", 1},
        {"learning_rate", 0},
        {"loss", "orpo"}};
    testing::write_file(*folder_ / "run.json", config.dump());
    // A model to begin with, and what it says of the pairs.
    train_losses("start", {});
    const std::string model = (*folder_ / "model").string();
    run({"export", "--run", run_dir("start"), "--out", model});
    run(
        {"evaluate",
         "--run",
         model,
         "--dataset",
         pairs(),
         "--write-reference",
         "--json"});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string pairs() { return (*folder_ / "pairs").string(); }
  static std::string run_dir(const std::string& name) {
    return (*folder_ / name).string();
  }
  static std::string run(const Arguments& arguments) {
    const ProgramResult result = testing::run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << ": " << result.err;
    return result.out;
  }
  static std::vector<double> train_losses(
      const std::string& name,
      std::vector<std::string> overrides,
      int ranks = 1) {
    overrides.push_back("logging.run_dir=" + run_dir(name));
    testing::train_as_threads(*folder_ / "run.json", ranks, overrides);
    return losses_of(run_dir(name));
  }
  // Ten steps that move the weights.
  static std::vector<std::string> steps_of(const std::string& loss) {
    return {
        "training.loss=" + loss,
        "training.total_train_steps=" + std::to_string(kPairSteps),
        "training.learning_rate=1e-3",
        "training.preference_beta=0.5"};
  }
  static std::string complaint(const Arguments& overrides) {
    Arguments all = {"train", "--config", (*folder_ / "run.json").string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    all.push_back("logging.run_dir=" + run_dir("refused"));
    const ProgramResult result = testing::run_program(all);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* PreferenceRun::folder_ = nullptr;

struct LayoutCase {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
};

TEST_F(PreferenceRun, EveryLayoutLearnsWhatOneRankLearns) {
  const std::string small = "training.micro_batch_size=2";
  const std::string four = "training.gradient_accumulation_steps=4";
  const std::string two = "training.gradient_accumulation_steps=2";
  const std::vector<LayoutCase> layouts = {
      {"micro", 1, {small, four}},
      {"dp", 2, {small, two}},
      {"zero3", 2, {small, two, "distributed.zero_stage=3"}},
      {"tp",
       2,
       {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {"cp", 2, {"distributed.cp_size=2"}},
      {"pp_zb",
       2,
       {small,
        four,
        "distributed.pp_size=2",
        "distributed.pp_engine=zero_bubble"}},
      {"all",
       8,
       {small,
        two,
        "distributed.dp_size=2",
        "distributed.tp_size=2",
        "distributed.pp_size=2",
        "distributed.zero_stage=1"}}};
  for (const std::string loss : {"dpo", "orpo", "simpo"}) {
    const auto expected = train_losses(loss, steps_of(loss));
    ASSERT_EQ(expected.size(), static_cast<size_t>(kPairSteps));
    const json last = testing::read_metrics(run_dir(loss)).back();
    for (const LayoutCase& layout : layouts) {
      // Each loss beside the axes; their combination once.
      if (loss != "dpo" && layout.ranks > 2)
        continue;
      SCOPED_TRACE(loss + " " + layout.name);
      auto overrides = steps_of(loss);
      overrides.insert(
          overrides.end(), layout.overrides.begin(), layout.overrides.end());
      const std::string name = loss + "_" + layout.name;
      const auto losses = train_losses(name, overrides, layout.ranks);
      EXPECT_LT(testing::largest_relative_difference(losses, expected), 2e-5);
      const json found = testing::read_metrics(run_dir(name)).back();
      for (const auto& [key, value] : last.at("preference").items())
        EXPECT_NEAR(
            found.at("preference").at(key).get<double>(),
            value.get<double>(),
            1e-3)
            << key;
    }
  }
}

// The adapters' base is the model that the reference's outputs are of.
TEST_F(PreferenceRun, AdaptersLearnInEveryLayoutWhatOneRankLearns) {
  const std::vector<LayoutCase> layouts = {
      {"tp_pp",
       4,
       {"training.micro_batch_size=2",
        "training.gradient_accumulation_steps=4",
        "distributed.tp_size=2",
        "distributed.pp_size=2",
        "distributed.sequence_parallel=true"}},
      {"dp_cp",
       4,
       {"training.micro_batch_size=4",
        "distributed.dp_size=2",
        "distributed.cp_size=2",
        "distributed.zero_stage=1"}}};
  for (const std::string loss : {"dpo", "orpo", "simpo"}) {
    auto overrides = steps_of(loss);
    overrides.insert(
        overrides.end(),
        {"model.config=null",
         "model.init=pretrained",
         "model.name=" + run_dir("model"),
         "training.learning_rate=1e-2",
         "adapter.rank=3",
         "adapter.alpha=12",
         "adapter.dropout=0.2",
         "adapter.targets=all-linear"});
    const auto expected = train_losses(loss + "_adapter", overrides);
    if (loss == "dpo") {
      EXPECT_NEAR(expected[0], std::numbers::ln2, 1e-4);
    }
    EXPECT_GT(
        testing::largest_relative_difference(
            {expected.back()}, {expected.front()}),
        1e-3);
    for (const LayoutCase& layout : layouts) {
      SCOPED_TRACE(loss + " " + layout.name);
      auto divided = overrides;
      divided.insert(
          divided.end(), layout.overrides.begin(), layout.overrides.end());
      const auto losses =
          train_losses(loss + "_adapter_divided", divided, layout.ranks);
      EXPECT_LT(testing::largest_relative_difference(losses, expected), 2e-5);
    }
  }
}

// The reference of an adapter's training is the base model: only the name tells
// one that was made with the adapter by mistake.
TEST_F(PreferenceRun, AReferenceNamesTheAdapterThatItWasMadeWith) {
  train_losses(
      "of_reference",
      {"model.config=null",
       "model.init=pretrained",
       "model.name=" + run_dir("model"),
       "adapter.rank=2"});
  run(
      {"export",
       "--run",
       run_dir("of_reference"),
       "--out",
       run_dir("adapter")});
  const fs::path path = *folder_ / "pairs.reference.json";
  const std::string kept = testing::read_file(path);
  EXPECT_EQ(json::parse(kept).at("model"), run_dir("model"));
  run(
      {"evaluate",
       "--run",
       run_dir("model"),
       "--adapter",
       run_dir("adapter"),
       "--dataset",
       pairs(),
       "--write-reference"});
  const json written = json::parse(testing::read_file(path));
  testing::write_file(path, kept);
  EXPECT_EQ(
      written.at("model"),
      run_dir("model") + " with the adapter " + run_dir("adapter"));
}

TEST_F(PreferenceRun, ExpertsLearnFromPairsWithoutLossesOfTheirRouters) {
  auto experts = steps_of("simpo");
  experts.insert(
      experts.end(),
      {R"(model.config.architectures=["MixtralForCausalLM"])",
       "model.config.model_type=mixtral",
       "model.config.num_local_experts=4",
       "model.config.num_experts_per_tok=2"});
  EXPECT_THAT(complaint(experts), HasSubstr("tokens, not over pairs"));
  experts.emplace_back("training.router_aux_loss=0");
  auto with_capacity = experts;
  with_capacity.emplace_back("training.expert_capacity_factor=1.25");
  EXPECT_THAT(complaint(with_capacity), HasSubstr("drops no token"));
  const auto expected = train_losses("experts", experts);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kPairSteps));
  EXPECT_LT(expected.back(), expected.front());
  experts.insert(
      experts.end(),
      {"training.micro_batch_size=2",
       "training.gradient_accumulation_steps=2",
       "distributed.ep_size=2"});
  EXPECT_LT(
      testing::largest_relative_difference(
          train_losses("experts_ep2", experts, 2), expected),
      2e-5);
}

TEST_F(PreferenceRun, DpoBeginsAtTheReferenceAndMovesAwayFromIt) {
  auto overrides = steps_of("dpo");
  // All 18 pairs that are not held out, in every step.
  overrides.insert(
      overrides.end(),
      {"training.eval_every=5",
       "dataset.eval_fraction=0.25",
       "training.micro_batch_size=4",
       "training.gradient_accumulation_steps=9",
       "training.learning_rate=3e-3"});
  train_losses("course", overrides);
  const auto steps = testing::read_metrics(run_dir("course"));
  EXPECT_NEAR(steps[0].at("loss").get<double>(), std::numbers::ln2, 1e-4);
  EXPECT_NEAR(steps[0].at("preference").at("margin").get<double>(), 0, 1e-4);
  EXPECT_LT(steps.back().at("loss").get<double>(), 0.65);
  const json& last = steps.back().at("preference");
  EXPECT_GT(last.at("margin").get<double>(), 0.05);
  EXPECT_GT(last.at("accuracy").get<double>(), 0.6);
  EXPECT_DOUBLE_EQ(
      last.at("margin").get<double>(),
      last.at("chosen_reward").get<double>() -
          last.at("rejected_reward").get<double>());
  EXPECT_FALSE(steps.back().contains("loss_tokens"));
  // Steps with an evaluation have those of held-out pairs.
  EXPECT_FALSE(steps[3].contains("eval_preference"));
  EXPECT_TRUE(steps[4].contains("eval_preference"));
}

TEST_F(PreferenceRun, TheLastPairsAreEvaluated) {
  // The six that are held out, once each, by the reference itself.
  train_losses(
      "held_out",
      {"training.loss=dpo",
       "training.learning_rate=0",
       "training.micro_batch_size=4",
       "training.eval_every=1",
       "training.eval_steps=3",
       "dataset.eval_fraction=0.25"});
  const json found = testing::read_metrics(run_dir("held_out")).at(0);
  const json& held_out = found.at("eval_preference");
  const json reference =
      json::parse(testing::read_file(*folder_ / "pairs.reference.json"));
  const json& log_probs = reference.at("log_probs");
  ASSERT_EQ(log_probs.size(), 48U);
  double chosen = 0;
  double rejected = 0;
  for (size_t i = 36; i < log_probs.size(); i += 2) {
    chosen += log_probs[i].get<double>() / 6;
    rejected += log_probs[i + 1].get<double>() / 6;
  }
  EXPECT_NEAR(held_out.at("margin").get<double>(), 0, 1e-4);
  EXPECT_NEAR(held_out.at("chosen_log_prob").get<double>(), chosen, 1e-3);
  EXPECT_NEAR(held_out.at("rejected_log_prob").get<double>(), rejected, 1e-3);
}

TEST_F(PreferenceRun, ARunContinuesAsOneThatWasNotInterrupted) {
  const auto expected = train_losses("whole", steps_of("simpo"));
  auto overrides = steps_of("simpo");
  overrides.push_back("checkpoint.save_frequency=5");
  train_losses("saved", overrides);
  overrides.push_back(
      "checkpoint.load_path=" + run_dir("saved") + "/checkpoints/5");
  overrides.push_back("training.micro_batch_size=2");
  overrides.push_back("training.gradient_accumulation_steps=4");
  const auto rest = train_losses("rest", overrides);
  ASSERT_EQ(rest.size(), 5U);
  EXPECT_LT(
      testing::largest_relative_difference(
          rest, {expected.begin() + 5, expected.end()}),
      2e-5);
}

TEST_F(PreferenceRun, AnotherReferenceIsNoticedOnResume) {
  auto overrides = steps_of("dpo");
  overrides[1] = "training.total_train_steps=2";
  train_losses("referred", overrides);
  overrides.push_back(
      "checkpoint.load_path=" + run_dir("referred") + "/checkpoints/2");
  overrides[1] = "training.total_train_steps=3";
  EXPECT_EQ(train_losses("same_reference", overrides).size(), 1U);
  const fs::path path = *folder_ / "pairs.reference.json";
  const std::string kept = testing::read_file(path);
  json other = json::parse(kept);
  other["log_probs"][0] = -1.5;
  testing::write_file(path, other.dump());
  EXPECT_THAT(complaint(overrides), HasSubstr("(its reference's SHA-256): \""));
  testing::write_file(path, kept);
  EXPECT_THAT(
      run({"inspect", pairs()}), HasSubstr((*folder_ / "model").string()));
}

TEST_F(PreferenceRun, EvaluateSaysHowOftenTheChosenAnswerIsTheLikelierOne) {
  const json found = json::parse(run(
      {"evaluate",
       "--run",
       run_dir("model"),
       "--dataset",
       pairs(),
       "--nproc",
       "2",
       "--json"}));
  const json& of_pairs = found.at(pairs());
  EXPECT_EQ(of_pairs.at("pairs"), 24);
  const json reference =
      json::parse(testing::read_file(*folder_ / "pairs.reference.json"));
  const json& log_probs = reference.at("log_probs");
  ASSERT_EQ(log_probs.size(), 48U);
  double chosen = 0;
  int right = 0;
  for (size_t i = 0; i < log_probs.size(); i += 2) {
    chosen += log_probs[i].get<double>() / 24;
    right +=
        log_probs[i].get<double>() > log_probs[i + 1].get<double>() ? 1 : 0;
  }
  EXPECT_NEAR(of_pairs.at("chosen_log_prob").get<double>(), chosen, 1e-4);
  EXPECT_NEAR(of_pairs.at("accuracy").get<double>(), right / 24.0, 1e-9);
}

TEST_F(PreferenceRun, NamesOptionsThatDoNotGoWithPairs) {
  EXPECT_THAT(
      complaint(
          {"training.micro_batch_size=3",
           "dataset.reset_attention=true",
           "distributed.local_steps=2"}),
      AllOf(
          HasSubstr("two of each pair; make it even"),
          HasSubstr("mean nothing: leave them out"),
          HasSubstr("do not learn from pairs yet")));
  EXPECT_THAT(
      complaint({"training.loss=cross_entropy"}), HasSubstr("holds 24 pairs"));
  EXPECT_THAT(
      complaint({"training.simpo_gamma=1"}),
      HasSubstr("set loss to \"simpo\""));
  EXPECT_THAT(
      complaint({"training.seq_length=16"}), HasSubstr("answer of pair"));
  EXPECT_THAT(
      testing::run_program({"evaluate",
                            "--run",
                            run_dir("model"),
                            "--dataset",
                            pairs(),
                            "--batch",
                            "5",
                            "--seq-length",
                            "6",
                            "--max-tokens",
                            "7"})
          .err,
      AllOf(
          HasSubstr("--batch 5: "),
          HasSubstr("--seq-length 6: "),
          HasSubstr("--max-tokens 7: ")));
  EXPECT_THAT(
      testing::run_program({"evaluate",
                            "--run",
                            run_dir("model"),
                            "--dataset",
                            testing::prepare_bytes(
                                *folder_ / "text", testing::made_up_text(500)),
                            "--write-reference"})
          .err,
      HasSubstr("holds no pairs"));
}

}  // namespace
}  // namespace brigade
