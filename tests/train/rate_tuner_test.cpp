// brigade tune-rate: what a width is, what a short run is, and the command.
#include "brigade/train/rate_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/model_layout.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TrainConfig tuned_config() {
  TrainConfig config;
  config.distributed.dims.dp = 1;
  DecoderConfig decoder;
  decoder.vocab_size = 259;
  decoder.hidden_size = 192;
  decoder.intermediate_size = 512;
  decoder.num_hidden_layers = 2;
  decoder.num_attention_heads = 6;
  decoder.num_key_value_heads = 2;
  decoder.head_dim = 32;
  config.model.decoder = decoder;
  return config;
}

TEST(RateTuner, AWidthKeepsHeadsAndScalesTheRest) {
  struct Case {
    int64_t width, heads, key_value_heads, intermediate;
  };
  // 2 of 6 key-value heads: 0.7 of 2, 1.3 of 4, 2.7 of 8.
  for (const Case& each :
       {Case{64, 2, 1, 168},
        Case{128, 4, 1, 344},
        Case{192, 6, 2, 512},
        Case{256, 8, 2, 680},
        Case{384, 12, 4, 1024}}) {
    const DecoderConfig decoder =
        model_of(with_width(tuned_config(), each.width));
    EXPECT_EQ(decoder.hidden_size, each.width);
    EXPECT_EQ(decoder.head_dim, 32);
    EXPECT_EQ(decoder.num_attention_heads, each.heads) << each.width;
    EXPECT_EQ(decoder.num_key_value_heads, each.key_value_heads) << each.width;
    EXPECT_EQ(decoder.intermediate_size, each.intermediate) << each.width;
  }
}

// DeepSeek-V3's router writes the shared one's width as a number of experts.
TEST(RateTuner, ASharedExpertStaysSoManyExpertsWide) {
  TrainConfig config = tuned_config();
  config.model.decoder->experts = ExpertsConfig{
      .num_experts = 4,
      .num_experts_per_tok = 2,
      .width = 24,
      .shared_width = 48};
  const DecoderConfig half = model_of(with_width(config, 96));
  EXPECT_EQ(half.experts->width, 16);
  EXPECT_EQ(half.experts->shared_width, 32);
}

TEST(RateTuner, RefusesModelsThatCannotHaveAnotherWidth) {
  TrainConfig config = tuned_config();
  EXPECT_THAT(
      [&] { with_width(config, 100); },
      ThrowsMessage<ConfigError>(
          HasSubstr("width 100 is no multiple of the model's heads of 32")));
  config.model.init = WeightInit::kPretrained;
  EXPECT_THROW(with_width(config, 64), ConfigError);
}

TEST(RateTuner, AShortRunHasTheSameShape) {
  TrainConfig config = tuned_config();
  config.training.total_train_steps = 300;
  config.training.max_tokens = 1 << 30;
  config.training.lr.peak = 4e-3;
  config.training.lr.minimum = 2e-4;
  config.training.lr.warmup_steps = 30;
  config.training.lr.decay_steps = 60;
  config.training.lr.table = LrTable{.points = {{0, 0}, {150, 1}}};
  config.training.optimizer.muon.learning_rate = 0.02;
  const TrainingConfig run = as_short_run(config, 50, 8e-3).training;
  EXPECT_EQ(run.total_train_steps, 50);
  EXPECT_FALSE(run.max_tokens);
  EXPECT_EQ(run.lr.warmup_steps, 5);
  EXPECT_EQ(run.lr.decay_steps, 10);
  EXPECT_EQ(run.lr.table->points[1].after, 25);
  EXPECT_DOUBLE_EQ(run.lr.peak, 8e-3);
  EXPECT_DOUBLE_EQ(run.lr.minimum, 4e-4);
  EXPECT_DOUBLE_EQ(*run.optimizer.muon.learning_rate, 0.04);
}

class TuneRateCommand : public ::testing::Test {
 protected:
  TuneRateCommand() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config["model"]["dtype"] = "float32";
    config["model"]["config"]["tie_word_embeddings"] = false;
    config["training"]["total_train_steps"] = 100;
    config["training"]["micro_batch_size"] = 4;
    config["training"]["learning_rate"] = 4e-3;
    testing::write_file(folder_ / "run.json", config.dump());
  }
  testing::ProgramResult tune(const testing::Arguments& more) const {
    testing::Arguments all = {
        "tune-rate",
        "--config",
        (folder_ / "run.json").string(),
        "--out",
        out().string()};
    all.insert(all.end(), more.begin(), more.end());
    return testing::run_program(all);
  }
  std::filesystem::path out() const { return folder_ / "rates.json"; }
  nlohmann::json result() const {
    return nlohmann::json::parse(testing::read_file(out()));
  }
  // Slopes of the last layer's and the logits' changes over widths.
  static std::vector<double> slopes(const nlohmann::json& result) {
    std::vector<double> all;
    for (const size_t last : {2, 1}) {
      std::vector<double> widths;
      std::vector<double> changes;
      for (const auto& trial : result.at("trials")) {
        const auto& activations = trial.at("activations");
        widths.push_back(trial.at("width"));
        changes.push_back(
            activations.at(activations.size() - last).at("change"));
      }
      all.push_back(log_slope(widths, changes).value_or(NAN));
    }
    return all;
  }

  testing::RunsFolder folder_;
};

// The coordinate check of mup: at one rate, what the logits do does not depend
// on the width, and grows with it without.
TEST_F(TuneRateCommand, MupsActivationsMoveEquallyAtEveryWidth) {
  const testing::Arguments check = {
      "--widths",
      "32,128",
      "--rates",
      "4e-3",
      "--steps",
      "6",
      "--check-after",
      "6"};
  testing::Arguments mup = check;
  mup.insert(
      mup.end(),
      {"training.parametrization=mup", "training.mup_base_hidden_size=32"});
  ASSERT_EQ(tune(mup).exit_code, 0);
  const nlohmann::json with_mup = result();
  std::filesystem::remove(out());
  ASSERT_EQ(tune(check).exit_code, 0);
  const nlohmann::json standard = result();
  // At the base width they are one.
  EXPECT_EQ(with_mup.at("trials")[0], standard.at("trials")[0]);
  for (const size_t each : {0, 1}) {
    EXPECT_LT(std::abs(slopes(with_mup)[each]), 0.25) << each;
    EXPECT_GT(slopes(standard)[each], 0.4) << each;
  }
}

TEST_F(TuneRateCommand, ASweepIsPrintedKeptAndContinued) {
  const auto svg = (folder_ / "rates.svg").string();
  const auto first =
      tune({"--widths", "16,32", "--rates", "1e-3,4e-3", "--steps", "3"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  EXPECT_THAT(first.out, HasSubstr("activation           16         32"));
  EXPECT_THAT(first.out, HasSubstr("0.004"));
  const nlohmann::json before = result();
  EXPECT_EQ(before.at("trials").size(), 4U);
  // The same again trains nothing; another rate is added.
  const auto more = tune(
      {"--widths",
       "16,32",
       "--rates",
       "1e-3,4e-3,1e18",
       "--steps",
       "3",
       "--svg",
       svg});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  const nlohmann::json after = result();
  ASSERT_EQ(after.at("trials").size(), 6U);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(after.at("trials")[i], before.at("trials")[i]);
  EXPECT_TRUE(after.at("trials")[4].at("loss").is_null());
  EXPECT_THAT(testing::read_file(svg), HasSubstr("</svg>"));
  const auto other =
      tune({"--widths", "16", "--steps", "3", "training.seed=7"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("trials of another config"));
  const auto width = tune({"--widths", "12", "--steps", "3"});
  EXPECT_EQ(width.exit_code, 2);
  EXPECT_THAT(width.err, HasSubstr("width 12 is no multiple"));
}

}  // namespace
}  // namespace brigade
