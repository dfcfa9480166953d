// Keys of optimizers are refused beside another one, and what an optimizer
// cannot be combined with is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/train_config.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Overrides = std::vector<std::string>;

std::vector<std::string> problems_with(
    const Overrides& overrides,
    int world_size = 1) {
  const auto config = nlohmann::json::parse(R"({
    "model": {"config": {
      "architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "vocab_size": 259, "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 128}},
    "training": {"seq_length": 64},
    "dataset": {"name": "data/tokens"}})");
  LoadOptions options{.path = "run.json", .world_size = world_size};
  for (const std::string& text : overrides)
    options.overrides.push_back({text});
  try {
    parse_train_config(config.dump(), options);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(OptimizerRules, RefusesMomentsThatAnOptimizerDoesNotKeep) {
  const std::string int8 = "training.optimizer_state_dtype=int8";
  const std::string sgd = "training.optimizer=sgd";
  EXPECT_THAT(problems_with({int8}), IsEmpty());
  EXPECT_THAT(problems_with({int8, "training.optimizer=muon"}), IsEmpty());
  EXPECT_THAT(
      problems_with({int8, sgd, "training.sgd_momentum=0.9"}), IsEmpty());
  EXPECT_THAT(
      problems_with({int8, sgd}),
      ElementsAre(HasSubstr(
          "/training/optimizer_state_dtype: moments in int8 of the optimizer "
          "sgd, which without momentum keeps none; set it to \"float32\"")));
  EXPECT_THAT(
      problems_with({int8, "training.optimizer=schedule_free_adamw"}),
      ElementsAre(HasSubstr("whose z are weights")));
}

TEST(OptimizerRules, AKeyBesideAnotherOptimizerIsRefused) {
  EXPECT_THAT(
      problems_with({"training.muon_momentum=0.9"}),
      ElementsAre(HasSubstr(
          "/training/muon_momentum = 0.9 has no meaning with "
          "/training/optimizer = \"adamw\"; set optimizer to \"muon\"")));
  EXPECT_THAT(
      problems_with({"training.optimizer=sgd", "training.adam_beta2=0.95"}),
      ElementsAre(HasSubstr("set optimizer to \"adamw\" or \"muon\" or "
                            "\"schedule_free_adamw\"")));
  for (const char* key :
       {"muon_learning_rate=0.1",
        "muon_nesterov=false",
        "muon_scale=original",
        "muon_steps=4",
        "muon_coefficients=[3,-3.2,1.2]",
        "muon_eps=1e-3",
        "muon_dtype=float32",
        "sgd_momentum=0.9",
        "schedule_free_step_power=1",
        "schedule_free_rate_power=1"}) {
    EXPECT_THAT(
        problems_with({std::string("training.") + key}),
        ElementsAre(HasSubstr("has no meaning with /training/optimizer")))
        << key;
  }
}

TEST(OptimizerRules, AKeyBesideItsOptimizerIsTaken) {
  EXPECT_THAT(
      problems_with(
          {"training.optimizer=muon",
           "training.muon_learning_rate=0.02",
           "training.muon_scale=spectral_unclamped",
           "training.muon_dtype=float32",
           "training.muon_coefficients=[3,-3.2,1.2]",
           "training.adam_beta2=0.95",
           "training.ema_decay=0.99"}),
      IsEmpty());
  for (const char* bad : {"[3,1]", "3", "[3,1,true]"})
    EXPECT_THAT(
        problems_with(
            {"training.optimizer=muon",
             std::string("training.muon_coefficients=") + bad}),
        ElementsAre(HasSubstr("a list of three numbers")))
        << bad;
  EXPECT_THAT(
      problems_with(
          {"training.optimizer=sgd",
           "training.sgd_momentum=0.9",
           "training.sgd_nesterov=true"}),
      IsEmpty());
  EXPECT_THAT(
      problems_with(
          {"training.optimizer=schedule_free_adamw",
           "training.adam_beta1=0.95",
           "training.schedule_free_step_power=1"}),
      IsEmpty());
}

TEST(OptimizerRules, NamesOptionsThatDoNotGoTogether) {
  EXPECT_THAT(
      problems_with({"training.optimizer=sgd", "training.sgd_nesterov=true"}),
      ElementsAre(HasSubstr("set /training/sgd_momentum")));
  EXPECT_THAT(
      problems_with(
          {"training.optimizer=muon",
           "training.learning_rate=0",
           "training.muon_learning_rate=0.02"}),
      ElementsAre(HasSubstr("/training/learning_rate is 0")));
  const std::string schedule_free = "training.optimizer=schedule_free_adamw";
  EXPECT_THAT(
      problems_with({schedule_free, "training.lr_schedule=cosine"}),
      ElementsAre(HasSubstr("set lr_schedule to \"constant\"")));
  EXPECT_THAT(
      problems_with({schedule_free, "training.adam_beta1=0"}),
      ElementsAre(HasSubstr("/training/adam_beta1 = 0")));
  EXPECT_THAT(
      problems_with({schedule_free, "training.ema_decay=0.9"}),
      ElementsAre(HasSubstr("which averages weights itself")));
  for (const std::string& averages :
       {schedule_free, std::string("training.ema_decay=0.9")})
    EXPECT_THAT(
        problems_with({averages, "distributed.local_steps=4"}, 2),
        ElementsAre(HasSubstr("would not be the average of the weights")))
        << averages;
}

std::string table_of(const char* points) {
  return std::string("training.lr_table=") + points;
}

TEST(ScheduleRules, ATrapezoidAndATableAreTaken) {
  EXPECT_THAT(
      problems_with(
          {"training.lr_schedule=trapezoid",
           "training.warmup_fraction=0.1",
           "training.decay_fraction=0.9"}),
      IsEmpty());
  for (const char* points :
       {R"([{"step": 0, "factor": 0}, {"step": 9, "factor": 1.5}])",
        R"([{"tokens": 1000000, "factor": 1}])"})
    EXPECT_THAT(
        problems_with({"training.lr_schedule=table", table_of(points)}),
        IsEmpty())
        << points;
}

TEST(ScheduleRules, ATableThatIsNoneIsNamedWithItsPoint) {
  for (const auto& [points, why] :
       {std::pair{"[]", "expected a list of"},
        std::pair{"3", "expected a list of"},
        std::pair{
            R"([{"step": 0, "factor": -1}])",
            R"({"factor":-1,"step":0} is none)"},
        std::pair{
            R"([{"step": 0.5, "factor": 1}])",
            R"({"factor":1,"step":0.5} is none)"},
        std::pair{
            R"([{"step": 0, "factor": 1}, {"tokens": 5, "factor": 1}])",
            R"({"factor":1,"tokens":5} is none)"},
        std::pair{
            R"([{"step": 7, "factor": 1}, {"step": 7, "factor": 2}])",
            R"({"factor":2,"step":7} does not come after step 7)"}})
    EXPECT_THAT(
        problems_with({"training.lr_schedule=table", table_of(points)}),
        Contains(AllOf(HasSubstr("/training/lr_table"), HasSubstr(why))))
        << points;
}

TEST(ScheduleRules, RefusesOptionsOfAnotherSchedule) {
  EXPECT_THAT(
      problems_with({"training.lr_schedule=table"}),
      ElementsAre(HasSubstr("without /training/lr_table")));
  EXPECT_THAT(
      problems_with({table_of(R"([{"step": 0, "factor": 1}])")}),
      ElementsAre(HasSubstr("set lr_schedule to \"table\"")));
  EXPECT_THAT(
      problems_with({"training.decay_fraction=0.5"}),
      ElementsAre(HasSubstr("set lr_schedule to \"trapezoid\"")));
  EXPECT_THAT(
      problems_with({"training.lr_schedule=cosine", "training.decay_steps=5"}),
      ElementsAre(HasSubstr("set lr_schedule to \"wsd\"")));
  EXPECT_THAT(
      problems_with(
          {"training.lr_schedule=trapezoid", "training.warmup_steps=5"}),
      ElementsAre(HasSubstr("whose warm-up is warmup_fraction")));
  EXPECT_THAT(
      problems_with(
          {"training.lr_schedule=trapezoid", "training.warmup_fraction=0.9"}),
      ElementsAre(HasSubstr("at most 1")));
  EXPECT_THAT(
      problems_with(
          {"training.lr_schedule=table",
           table_of(R"([{"step": 0, "factor": 1}])"),
           "training.min_learning_rate=1e-5"}),
      ElementsAre(HasSubstr("whose points say all")));
  EXPECT_THAT(
      problems_with(
          {"training.lr_schedule=constant", "training.min_learning_rate=1e-5"}),
      ElementsAre(HasSubstr("which does not fall")));
}

TEST(MupRules, NamesOptionsThatItCannotBeUsedWith) {
  const std::string mup = "training.parametrization=mup";
  const std::string base = "training.mup_base_hidden_size=32";
  EXPECT_THAT(problems_with({mup, base}), IsEmpty());
  EXPECT_THAT(
      problems_with({mup}),
      ElementsAre(HasSubstr("without /training/mup_base_hidden_size")));
  EXPECT_THAT(
      problems_with({base}),
      ElementsAre(HasSubstr("set parametrization to \"mup\"")));
  EXPECT_THAT(
      problems_with({mup, base, "training.optimizer=sgd"}),
      ElementsAre(HasSubstr("/training/optimizer = \"sgd\"")));
  EXPECT_THAT(
      problems_with({mup, base, "adapter.rank=4"}),
      Contains(HasSubstr("with /adapter/rank")));
}

}  // namespace
}  // namespace brigade
