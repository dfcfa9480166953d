#include "brigade/run/resume_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

json config() {
  return {
      {"distributed", {{"dp_size", 2}, {"tp_size", 1}}},
      {"training",
       {{"seed", 42},
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"gradient_accumulation_steps", 1},
        {"learning_rate", 0.001},
        {"lr_schedule", "cosine"},
        {"eval_every", 0}}},
      {"dataset",
       {{"name", "data/a"}, {"eval_fraction", 0.02}, {"shuffle", true}}},
      {"logging", {{"run_dir", "runs/a"}}}};
}

RunFacts facts(
    const json& config,
    const json& model = {{"hidden_size", 32}},
    const json& data = {{"num_tokens", 100}, {"tokenizer_sha256", "ab"}}) {
  return run_facts(config, model, data);
}

// config() with the value at the pointer.
json with(const char* pointer, const json& value) {
  json changed = config();
  changed[json::json_pointer(pointer)] = value;
  return changed;
}

ResumeChanges changes_of(
    const json& now,
    const std::vector<std::string>& allow_changes = {}) {
  return compare_runs(facts(config()), facts(now), allow_changes);
}

TEST(ResumeRules, TheSameRunHasNoChanges) {
  const ResumeChanges changes = changes_of(config());
  EXPECT_THAT(changes.refused, IsEmpty());
  EXPECT_THAT(changes.allowed, IsEmpty());
  EXPECT_THAT(changes.trajectory, IsEmpty());
}

// The average that was saved is made of them.
TEST(ResumeRules, ScheduleFreeKeepsWhatItsAverageIsMadeOf) {
  for (const char* key :
       {"adam_beta1", "schedule_free_rate_power", "schedule_free_step_power"}) {
    const auto facts_with = [&](const char* optimizer, double value) {
      json changed = config();
      changed["training"]["optimizer"] = optimizer;
      changed["training"][key] = value;
      return facts(changed);
    };
    const ResumeChanges changes = compare_runs(
        facts_with("schedule_free_adamw", 0.5),
        facts_with("schedule_free_adamw", 0.75),
        {});
    EXPECT_THAT(
        changes.refused,
        ElementsAre(
            "training." + std::string(key) + ": 0.5 when saved, 0.75 now"));
  }
  json changed = config();
  changed["training"]["adam_beta1"] = 0.5;
  json now = changed;
  now["training"]["adam_beta1"] = 0.75;
  EXPECT_THAT(compare_runs(facts(changed), facts(now), {}).refused, IsEmpty());
}

// A checkpoint from before adapters had magnitudes says nothing of them.
TEST(ResumeRules, MagnitudesDoNotComeLater) {
  const auto adapted = [](const json& adapter) {
    return facts(with("/adapter", adapter));
  };
  const RunFacts saved = adapted({{"rank", 4}});
  EXPECT_THAT(
      compare_runs(saved, adapted({{"rank", 4}, {"use_dora", true}}), {})
          .refused,
      ElementsAre("adapter.use_dora: false when saved, true now"));
  EXPECT_THAT(
      compare_runs(saved, adapted({{"rank", 4}, {"use_dora", false}}), {})
          .refused,
      IsEmpty());
}

TEST(ResumeRules, RefusesChangesOfTheRunsMeaning) {
  EXPECT_THAT(
      changes_of(with("/training/seed", 7)).refused,
      ElementsAre("training.seed: 42 when saved, 7 now"));
  EXPECT_THAT(
      changes_of(with("/dataset/name", "data/b")).refused,
      ElementsAre("dataset.name: \"data/a\" when saved, \"data/b\" now"));
  for (const char* pointer :
       {"/training/seq_length", "/dataset/shuffle", "/training/seed"})
    EXPECT_EQ(changes_of(with(pointer, 9)).refused.size(), 1U) << pointer;
}

// A checkpoint from before there was packing says nothing of it.
TEST(ResumeRules, SequencesThatAreCutAreNotThoseThatArePacked) {
  EXPECT_THAT(
      changes_of(with("/dataset/packing", "best_fit")).refused,
      ElementsAre("dataset.packing: \"none\" when saved, \"best_fit\" now"));
  EXPECT_THAT(changes_of(with("/dataset/packing", "none")).refused, IsEmpty());
}

// An old checkpoint says nothing of parametrizations and losses either.
TEST(ResumeRules, AnOldRunHadTheStandardParametrizationAndTheLossOfTokens) {
  EXPECT_THAT(
      changes_of(with("/training/parametrization", "mup")).refused,
      ElementsAre("training.parametrization: \"standard\" when saved, \"mup\" "
                  "now"));
  EXPECT_THAT(
      changes_of(with("/training/loss", "dpo")).refused,
      ElementsAre("training.loss: \"cross_entropy\" when saved, \"dpo\" now"));
  EXPECT_THAT(
      changes_of(with("/training/parametrization", "standard")).refused,
      IsEmpty());
  EXPECT_THAT(
      changes_of(with("/training/loss", "cross_entropy")).refused, IsEmpty());
}

TEST(ResumeRules, AllowsAChangeByName) {
  const ResumeChanges changes =
      changes_of(with("/training/seed", 7), {"training.seed"});
  EXPECT_THAT(changes.refused, IsEmpty());
  EXPECT_EQ(changes.allowed.size(), 1U);
  EXPECT_EQ(
      changes_of(with("/training/seed", 7), {"dataset.name"}).refused.size(),
      1U);
}

TEST(ResumeRules, ListsChangesOfTheRunsTrajectory) {
  EXPECT_THAT(
      changes_of(with("/training/learning_rate", 0.01)).trajectory,
      ElementsAre("training.learning_rate: 0.001 when saved, 0.01 now"));
  EXPECT_THAT(
      changes_of(with("/training/lr_schedule", "wsd")).trajectory,
      ElementsAre("training.lr_schedule: \"cosine\" when saved, \"wsd\" now"));
  EXPECT_THAT(
      changes_of(with("/training/micro_batch_size", 8)).trajectory,
      ElementsAre("sequences per step: 8 when saved, 16 now"));
}

// The same batch in other pieces is the same run.
TEST(ResumeRules, LayoutAndFoldersDoNotMatter) {
  json now = with("/logging/run_dir", "runs/b");
  now["distributed"] = {{"dp_size", 1}, {"tp_size", 2}};
  now["training"]["gradient_accumulation_steps"] = 2;
  const ResumeChanges changes = changes_of(now);
  EXPECT_THAT(changes.refused, IsEmpty());
  EXPECT_THAT(changes.trajectory, IsEmpty());
}

// Holding out text for evaluation moves every training window.
TEST(ResumeRules, EvaluationCountsAsAnotherDataset) {
  EXPECT_THAT(
      changes_of(with("/training/eval_every", 5)).refused,
      ElementsAre("training.eval_every (whether data is held out): false when "
                  "saved, true now"));
  EXPECT_THAT(
      changes_of(with("/dataset/eval_fraction", 0.5)).refused, IsEmpty());
  json held_out = with("/training/eval_every", 5);
  json other = held_out;
  other["training"]["eval_every"] = 7;
  EXPECT_THAT(
      compare_runs(run_facts(held_out, {}, {}), run_facts(other, {}, {}), {})
          .refused,
      IsEmpty());
  other["dataset"]["eval_fraction"] = 0.5;
  EXPECT_THAT(
      compare_runs(run_facts(held_out, {}, {}), run_facts(other, {}, {}), {})
          .refused,
      ElementsAre("dataset.eval_fraction: 0.02 when saved, 0.5 now"));
}

TEST(ResumeRules, TheSameNameWithOtherContentsIsAnotherDataset) {
  const auto refused = [](const json& model, const json& data) {
    return compare_runs(facts(config()), facts(config(), model, data), {})
        .refused;
  };
  EXPECT_THAT(
      refused(
          {{"hidden_size", 32}},
          {{"num_tokens", 101}, {"tokenizer_sha256", "ab"}}),
      ElementsAre(
          "dataset.name (its number of tokens): 100 when saved, 101 now"));
  EXPECT_THAT(
      refused(
          {{"hidden_size", 32}},
          {{"num_tokens", 100}, {"tokenizer_sha256", "cd"}}),
      ElementsAre(
          "dataset.tokenizer (its SHA-256): \"ab\" when saved, \"cd\" now"));
  EXPECT_THAT(
      refused(
          {{"hidden_size", 64}},
          {{"num_tokens", 100}, {"tokenizer_sha256", "ab"}}),
      ElementsAre("model.config hidden_size: 32 when saved, 64 now"));
}

TEST(ResumeRules, OtherModelsOutputsAreComparedWhereTheyWereSaved) {
  const json model = {{"hidden_size", 32}};
  const auto refused = [&](const json& saved, const json& now) {
    return compare_runs(
               facts(config(), model, saved), facts(config(), model, now), {})
        .refused;
  };
  const json none = {{"num_tokens", 100}};
  json one = none;
  one["reference_sha256"] = "ab";
  one["teacher"] = "5 bytes";
  json other = one;
  other["reference_sha256"] = "cd";
  EXPECT_THAT(
      refused(one, other),
      ElementsAre("dataset.name (its reference's SHA-256): \"ab\" when saved, "
                  "\"cd\" now"));
  other = one;
  other["teacher"] = "6 bytes";
  EXPECT_THAT(
      refused(one, other),
      ElementsAre("dataset.teacher (its fingerprint): \"5 bytes\" when saved, "
                  "\"6 bytes\" now"));
  EXPECT_THAT(refused(one, one), IsEmpty());
  // Older checkpoints have no such facts.
  EXPECT_THAT(refused(none, one), IsEmpty());
}

TEST(ResumeRules, AMixtureMayChangeFromTheCheckpointOn) {
  const auto mixture = [](const json& first, const json& second) {
    json run = config();
    run["dataset"]["mixture"] = {
        {{"name", "a"}, {"weight", first}},
        {{"name", "b"}, {"weight", second}}};
    return run;
  };
  const auto is_kept = [](const json& saved, const json& now, int64_t steps) {
    return compare_runs(
               run_facts(with_past_mixture(saved, steps, 64 * steps), {}, {}),
               run_facts(with_past_mixture(now, steps, 64 * steps), {}, {}),
               {})
        .refused.empty();
  };
  const json falls = {
      {{"step", 0}, {"weight", 1}}, {{"step", 100}, {"weight", 0.5}}};
  const json later = {
      {{"step", 50}, {"weight", 1}}, {{"step", 60}, {"weight", 4}}};
  // Weights that never changed so far may do so from now on.
  EXPECT_TRUE(is_kept(mixture(1, 1), mixture(later, 1), 50));
  EXPECT_FALSE(is_kept(mixture(1, 1), mixture(later, 1), 51));
  EXPECT_FALSE(is_kept(mixture(1, 1), mixture(2, 1), 50));
  // One that changes already is kept as far as it has come.
  json other = falls;
  other.insert(other.begin() + 1, json({{"step", 50}, {"weight", 0.75}}));
  EXPECT_TRUE(is_kept(mixture(falls, 1), mixture(falls, 1), 50));
  EXPECT_FALSE(is_kept(mixture(falls, 1), mixture(later, 1), 50));
  other[2]["weight"] = 3;
  EXPECT_TRUE(is_kept(mixture(falls, 1), mixture(other, 1), 0));
  // The same holds for points in tokens.
  const json tokens = {
      {{"tokens", 6400}, {"weight", 1}}, {{"tokens", 9000}, {"weight", 2}}};
  EXPECT_TRUE(is_kept(mixture(1, 1), mixture(tokens, 1), 100));
  EXPECT_FALSE(is_kept(mixture(1, 1), mixture(tokens, 1), 101));
  // Another batch means other samples at a point in steps.
  json batch = mixture(falls, 1);
  batch["training"]["micro_batch_size"] = 7;
  EXPECT_FALSE(is_kept(mixture(falls, 1), batch, 50));
  // At one that lies ahead too, which would then lie before.
  batch = mixture(later, 1);
  batch["training"]["micro_batch_size"] = 7;
  EXPECT_FALSE(is_kept(mixture(later, 1), batch, 50));
  batch = mixture(tokens, 1);
  batch["training"]["micro_batch_size"] = 7;
  EXPECT_TRUE(is_kept(mixture(tokens, 1), batch, 100));
  // At the points of a weight that stays the same, those of others count anew.
  const json points = {
      {{"step", 20}, {"weight", 1}}, {{"step", 60}, {"weight", 4}}};
  const json begins = {
      {{"step", 0}, {"weight", 1}}, {{"step", 50}, {"weight", 1}}};
  EXPECT_FALSE(is_kept(mixture(falls, 1), mixture(falls, points), 50));
  EXPECT_TRUE(is_kept(mixture(falls, 1), mixture(falls, points), 20));
  EXPECT_TRUE(is_kept(mixture(falls, 1), mixture(falls, begins), 50));
}

TEST(ResumeRules, KeysThatAnOldCheckpointLacksArePassedOver) {
  json old = config();
  old["dataset"].erase("shuffle");
  old.erase("distributed");
  const ResumeChanges changes = compare_runs(
      run_facts(old, {{"hidden_size", 32}}, nullptr), facts(config()), {});
  EXPECT_THAT(changes.refused, IsEmpty());
  EXPECT_THAT(changes.trajectory, IsEmpty());
}

}  // namespace
}  // namespace brigade
