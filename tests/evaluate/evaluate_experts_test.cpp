// `brigade evaluate` and `generate` on a run with divided experts: every layout
// gives the run's held-out loss and the same text.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace brigade {
namespace {

using nlohmann::json;
using testing::Arguments;

constexpr int64_t kSequence = 24;
constexpr int64_t kSequences = 4;  // per step, and in the held-out half

class EvaluateExperts : public ::testing::Test {
 protected:
  EvaluateExperts() {
    // Consecutive windows share a token; the last ones are held out.
    const std::string text =
        testing::made_up_text(2 * kSequences * kSequence + 1);
    const Arguments as_it_is = {"--no-append-eos"};
    auto config = testing::tiny_run(
        testing::prepare_bytes(folder_ / "all", text, as_it_is));
    testing::prepare_bytes(
        folder_ / "held_out", text.substr(kSequences * kSequence), as_it_is);
    auto& model = config["model"];
    model["config"] = testing::with_experts(model["config"]);
    config["dataset"]["eval_fraction"] = 0.5;
    config["training"] = {
        {"seq_length", kSequence},
        {"micro_batch_size", kSequences / 2},
        {"total_train_steps", 3},
        {"learning_rate", 1e-2},
        {"router_bias_rate", 0.1},
        {"expert_capacity_factor", 1.0},  // evaluation ignores it
        {"eval_every", 3},
        {"eval_steps", 1}};
    config["distributed"] = {{"ep_size", 2}};
    config["logging"] = {{"run_dir", run_}};
    testing::write_file(folder_ / "run.json", config.dump());
    run({"train", "--config", (folder_ / "run.json").string(), "--nproc", "2"});
  }

  static testing::ProgramResult run(const Arguments& arguments) {
    auto result = testing::run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  static testing::ProgramResult run(
      Arguments arguments,
      const Arguments& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  testing::RunsFolder folder_;
  const std::string run_ = (folder_ / "run").string();
};

const Arguments kLayouts[] = {
    {},
    {"--nproc", "2"},
    {"--nproc", "4", "distributed.tp_size=2", "distributed.pp_size=2"},
    {"--nproc", "4", "distributed.ep_size=2"}};

TEST_F(EvaluateExperts, LossAndTextAreThoseOfTheRunInEveryLayout) {
  const auto steps = testing::read_metrics(run_);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_GT(steps.back().at("experts").at("dropped"), 0);
  const double expected = steps.back().at("eval_loss");
  std::string text;
  for (const Arguments& layout : kLayouts) {
    const json result = json::parse(run({"evaluate",
                                         "--run",
                                         run_,
                                         "--dataset",
                                         (folder_ / "held_out").string(),
                                         "--seq-length",
                                         std::to_string(kSequence),
                                         "--json"},
                                        layout)
                                        .out)
                            .front();
    EXPECT_EQ(result.at("tokens"), kSequences * kSequence);
    EXPECT_NEAR(result.at("loss").get<double>() / expected, 1, 1e-6);
    const std::string written =
        run({"generate", "--run", run_, "-p", "ba", "-t", "0", "-n", "12"},
            layout)
            .out;
    if (text.empty())
      text = written;
    EXPECT_EQ(written, text);
  }
}

}  // namespace
}  // namespace brigade
