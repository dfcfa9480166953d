// What the program says of ZeRO's stages: the memory of --dry-run, and what
// inspect shows of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kMibOfReport = 1 << 20;

class ZeroReports : public ::testing::Test {
 protected:
  ZeroReports() {
    config_ = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config_["training"]["total_train_steps"] = 2;
    config_["logging"]["run_dir"] = (folder_ / "run").string();
  }
  std::string write() {
    testing::write_file(folder_ / "run.json", config_.dump());
    return (folder_ / "run.json").string();
  }

  testing::RunsFolder folder_;
  nlohmann::json config_;
};

// MiB of the only stage.
struct ReportedMemory {
  double weights = 0, gradients = 0, optimizer = 0, sum = 0, units = 0;
};

ReportedMemory reported_by(const std::string& text) {
  std::smatch found;
  const std::regex line(
      "([0-9.]+) MiB of weights \\(([0-9.]+)\\), gradients \\(([0-9.]+)\\) and "
      "optimizer state \\(([0-9.]+)\\)( and ([0-9.]+) MiB of two units' whole "
      "weights)?");
  if (!std::regex_search(text, found, line)) {
    ADD_FAILURE() << text;
    return {};
  }
  return {
      .weights = std::stod(found[2]),
      .gradients = std::stod(found[3]),
      .optimizer = std::stod(found[4]),
      .sum = std::stod(found[1]),
      .units = found[6].matched ? std::stod(found[6]) : 0};
}

TEST_F(ZeroReports, ADryRunsMemoryIsThatOfTheStage) {
  auto& model = config_["model"]["config"];
  model["hidden_size"] = 512;
  model["intermediate_size"] = 1024;
  // Embedding (tied), last norm; each layer: q, o, k, v, three of the MLP, two
  // norms.
  constexpr double kLayer =
      2 * 512 * 512 + 2 * 256 * 512 + 3 * 512 * 1024 + 2 * 512;
  constexpr double kParameters = 259 * 512 + 512 + 4 * kLayer;
  for (const bool is_bf16 : {true, false}) {
    config_["model"]["dtype"] = is_bf16 ? "bfloat16" : "float32";
    const double weight_bytes = is_bf16 ? 2 : 4;
    const double state_bytes = is_bf16 ? 10 : 8;
    const std::string file = write();
    for (int stage = 0; stage <= 3; ++stage) {
      const auto result = testing::run_program(
          {"train",
           "--config",
           file,
           "--nproc",
           "4",
           "--dry-run",
           "distributed.cp_size=2",
           "distributed.zero_stage=" + std::to_string(stage)});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const ReportedMemory memory = reported_by(result.out);
      const auto expected = [&](double bytes, int divided_from) {
        return kParameters * bytes / (stage >= divided_from ? 4 : 1) /
               kMibOfReport;
      };
      EXPECT_NEAR(memory.weights, expected(weight_bytes, 3), 0.06) << stage;
      EXPECT_NEAR(memory.gradients, expected(4, 2), 0.06) << stage;
      EXPECT_NEAR(memory.optimizer, expected(state_bytes, 1), 0.06) << stage;
      EXPECT_NEAR(
          memory.sum,
          memory.weights + memory.gradients + memory.optimizer,
          0.16)
          << stage;
      EXPECT_NEAR(
          memory.units,
          stage == 3 ? 2 * kLayer * weight_bytes / kMibOfReport : 0,
          0.06)
          << stage;
    }
  }
}

TEST_F(ZeroReports, InspectSaysUnderWhichStageACheckpointWasSaved) {
  const std::string file = write();
  for (int stage = 0; stage <= 3; ++stage) {
    testing::train_as_threads(
        file, 2, {"distributed.zero_stage=" + std::to_string(stage)});
    const auto result =
        testing::run_program({"inspect", (folder_ / "run").string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::string layout = "dp 2 * pp 1 * cp 1 * tp 1 (2 ranks";
    EXPECT_THAT(
        result.out,
        HasSubstr(
            stage == 0 ? layout + ");"
                       : layout + ", zero stage " + std::to_string(stage) +
                             "); any other may continue it"));
    // Whatever the stage, a file holds everything once.
    EXPECT_THAT(result.out, HasSubstr("all 38 of the model"));
    EXPECT_THAT(result.out, HasSubstr("exp_avg.* "));
    EXPECT_THAT(result.out, Not(HasSubstr("INCOMPLETE")));
  }
}

}  // namespace
}  // namespace brigade
