// brigade plan, and that `train` takes what it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "program.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanTest : public ProgramTest {
 protected:
  int plan(std::vector<std::string> arguments) const {
    arguments.insert(
        arguments.begin(),
        {"plan", "--model", BRIGADE_SOURCE_DIR "/examples/llama-3-8b.json"});
    return exit_code(start(arguments));
  }
};

TEST_F(PlanTest, ListsLayoutsWithTimeMemoryAndWhatIsSlower) {
  ASSERT_EQ(
      plan(
          {"--machine",
           "h100",
           "--gpus",
           "16",
           "--seq",
           "8192",
           "--global-batch",
           "64"}),
      0)
      << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("llama-3-8b: 8.03 B parameters on 16 x H100-SXM5-80GB"),
          HasSubstr("layouts can train it"),
          HasSubstr("matrix products"),
          HasSubstr("Why the next are slower")));
}

TEST_F(PlanTest, TrainTakesTheConfigOfTheQuickest) {
  const std::string path = (folder_ / "best.json").string();
  ASSERT_EQ(
      plan(
          {"--machine",
           "h100",
           "--gpus",
           "16",
           "--global-batch",
           "64",
           "--config-out",
           path}),
      0)
      << err();
  const LoadedConfig loaded =
      load_train_config({.path = path, .world_size = 16});
  EXPECT_EQ(loaded.config.training.seq_length, 8192);
  EXPECT_EQ(
      loaded.config.training.micro_batch_size *
          loaded.config.training.gradient_accumulation_steps *
          loaded.config.distributed.dims.dp,
      64);
}

// The head's memory under the config's loss and the optimizer's states count.
TEST_F(PlanTest, TheLossAndTheOptimizerOfATrainingConfigCount) {
  std::ifstream file(BRIGADE_SOURCE_DIR "/examples/llama-3-8b.json");
  const auto given = nlohmann::json::parse(file);
  const auto found = [&](const nlohmann::json& training) {
    nlohmann::json config;
    config["model"]["config"] =
        given.contains("model") ? given["model"]["config"] : given;
    config["training"] = training;
    const std::string path = (folder_ / "run.json").string();
    std::ofstream(path) << config;
    const size_t before = out().size();
    EXPECT_EQ(
        exit_code(start(
            {"plan",
             "--model",
             path,
             "--machine",
             "h100",
             "--gpus",
             "64",
             "--global-batch",
             "64",
             "--explain",
             "tp8-dp8-mb1"})),
        0)
        << err();
    return out().substr(before);
  };
  const std::string plain = found({{"loss", "cross_entropy"}});
  EXPECT_NE(found({{"loss", "dpo"}}), plain);
  EXPECT_NE(found({{"loss", "distill"}}), plain);
  EXPECT_EQ(found({{"loss", "none_that_there_is"}}), plain);
  // 8.03 billion parameters on 8 ranks of tp: 10 bytes of each, 2 of moments in
  // codes and 2 of masters, 6 of matrices that have one moment.
  const auto optimizer_gb = [&](const nlohmann::json& training) {
    std::istringstream text(found(training));
    std::string line;
    while (std::getline(text, line) && line.find("pp rank") == line.npos)
      ;
    double rank = 0;
    double weights = 0;
    double gradients = 0;
    double optimizer = 0;
    text >> rank >> weights >> gradients >> optimizer;
    return optimizer;
  };
  const double adamw = optimizer_gb({{"optimizer", "adamw"}});
  EXPECT_EQ(found({{"optimizer", "adamw"}}), plain);
  EXPECT_NEAR(
      optimizer_gb({{"optimizer_state_dtype", "int8"}}) / adamw, 0.403, 0.01);
  EXPECT_NEAR(optimizer_gb({{"optimizer", "muon"}}) / adamw, 0.65, 0.03);
  EXPECT_NEAR(optimizer_gb({{"ema_decay", 0.99}}) / adamw, 1.4, 0.01);
}

// The keys that the memory was counted with, and the model's in its place.
TEST_F(PlanTest, WritesTheTrainingConfigThatItHasCounted) {
  std::ifstream file(BRIGADE_SOURCE_DIR "/examples/llama-3-8b.json");
  const auto given = nlohmann::json::parse(file);
  nlohmann::json config;
  config["model"]["config"] =
      given.contains("model") ? given["model"]["config"] : given;
  config["model"]["num_hidden_layers"] = 4;
  config["training"] = {{"optimizer", "sgd"}, {"sgd_momentum", 0.0}};
  const std::string path = (folder_ / "run.json").string();
  std::ofstream(path) << config;
  const std::string written = (folder_ / "best.json").string();
  const auto plan_of = [&](const std::string& config_out) {
    return exit_code(start(
        {"plan",
         "--model",
         path,
         "--machine",
         "h100",
         "--gpus",
         "8",
         "--dtype",
         "fp8",
         "--config-out",
         config_out}));
  };
  ASSERT_EQ(plan_of(written), 0) << err();
  EXPECT_THAT(out(), HasSubstr("it trains in bfloat16"));
  const auto loaded = load_train_config({.path = written, .world_size = 8});
  EXPECT_EQ(loaded.config.training.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(loaded.config.training.optimizer.sgd.momentum, 0);
  EXPECT_EQ(loaded.config.model.decoder->num_hidden_layers, 4);
  EXPECT_EQ(plan_of(path), 2);
  EXPECT_THAT(err(), HasSubstr("is the file of --model; give another"));
}

// `train` loads the quickest layout of a model with experts, also with the
// other divisions of experts that are listed.
TEST_F(PlanTest, TrainTakesTheLayoutsOfAModelWithExperts) {
  const std::string path = (folder_ / "best.json").string();
  const std::vector<std::string> asked = {
      "plan",
      "--model",
      BRIGADE_SOURCE_DIR "/examples/qwen3-30b-a3b.json",
      "--machine",
      "h100",
      "--gpus",
      "64",
      "--zero",
      "1"};
  auto arguments = asked;
  arguments.insert(arguments.end(), {"--json", "--top", "200"});
  ASSERT_EQ(exit_code(start(arguments)), 0) << err();
  const auto layouts = nlohmann::json::parse(out())["layouts"];
  for (const char* part : {"products", "tp", "cp", "ep", "dp", "optimizer"})
    EXPECT_TRUE(layouts[0]["seconds"].contains(part)) << part;
  arguments = asked;
  arguments.insert(arguments.end(), {"--config-out", path});
  ASSERT_EQ(exit_code(start(arguments)), 0) << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("qwen3-30b-a3b: 30.53 B parameters, 3.35 B per token, on "
                    "64 x H100-SXM5-80GB"),
          HasSubstr("ep, exposed")));
  const auto best = load_train_config({.path = path, .world_size = 64});
  EXPECT_GT(best.config.distributed.dims.ep, 1);
  std::set<int> divisions;
  for (const auto& entry : layouts) {
    const std::string layout = entry["layout"];
    const size_t at = layout.find("-ep");
    const int ep =
        at == std::string::npos ? 1 : std::stoi(layout.substr(at + 3));
    if (!divisions.insert(ep).second)
      continue;
    EXPECT_NO_THROW(load_train_config(
        {.path = path,
         .overrides = {{fmt::format("distributed.ep_size={}", ep)}},
         .world_size = 64}))
        << layout;
  }
  EXPECT_GT(divisions.size(), 1U);
}

// The planner and train have the same rules: every listed layout loads unless
// it needs a key that does not exist yet.
TEST_F(PlanTest, TrainTakesEveryLayoutThatIsListed) {
  const std::string path = (folder_ / "best.json").string();
  ASSERT_EQ(
      plan(
          {"--machine",
           "gb200",
           "--gpus",
           "24",
           "--seq",
           "1024",
           "--global-batch",
           "48",
           "--zero",
           "0",
           "--top",
           "1000",
           "--json"}),
      0)
      << err();
  const auto json = nlohmann::json::parse(out());
  ASSERT_EQ(
      plan(
          {"--machine",
           "gb200",
           "--gpus",
           "24",
           "--seq",
           "1024",
           "--global-batch",
           "48",
           "--zero",
           "0",
           "--config-out",
           path}),
      0)
      << err();
  ASSERT_GT(json["layouts"].size(), 100u);
  for (const auto& entry : json["layouts"]) {
    const std::string layout = entry["layout"];
    int dp = 0;
    int tp = 0;
    int pp = 0;
    int cp = 0;
    ASSERT_EQ(
        std::sscanf(layout.c_str(), "dp%d-tp%d-pp%d-cp%d", &dp, &tp, &pp, &cp),
        4);
    const auto has = [&](const char* part) {
      return layout.find(part) != std::string::npos;
    };
    const int micro_batch = std::stoi(layout.substr(layout.find("-mb") + 3));
    const int stages = std::stoi(layout.substr(layout.rfind("-v") + 2));
    const std::string engine = has("interleaved_1f1b") ? "interleaved_1f1b"
                               : has("zero_bubble")    ? "zero_bubble"
                               : has("-afab")          ? "afab"
                                                       : "1f1b";
    const auto given = [](const char* key, auto value) {
      return ConfigOverride{fmt::format("{}={}", key, value)};
    };
    EXPECT_NO_THROW(load_train_config(
        {.path = path,
         .overrides =
             {given("distributed.dp_size", dp),
              given("distributed.tp_size", tp),
              given("distributed.pp_size", pp),
              given("distributed.cp_size", cp),
              given("distributed.pp_engine", engine),
              given("distributed.pp_virtual_stages", stages),
              given("distributed.sequence_parallel", has("-sp")),
              given("training.micro_batch_size", micro_batch),
              given(
                  "training.gradient_accumulation_steps",
                  48 / dp / micro_batch)},
         .world_size = 24}))
        << layout;
  }
}

TEST_F(PlanTest, ExplainsOneLayoutAndRefusesOneThatCannotBe) {
  const std::vector<std::string> machine = {
      "--machine", "h100", "--gpus", "16", "--global-batch", "64", "--explain"};
  auto arguments = machine;
  arguments.emplace_back("dp16");
  ASSERT_EQ(plan(arguments), 0) << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("dp16-tp1-pp1-cp1-zero0-mb1-1f1b-v1-none"),
          HasSubstr("does not fit: the largest rank needs")));
  arguments.back() = "dp4-tp3";
  EXPECT_EQ(plan(arguments), 2);
  EXPECT_THAT(err(), HasSubstr("= 12, but world size is 16"));
}

TEST_F(PlanTest, EveryMissingOptionIsReported) {
  EXPECT_EQ(plan({"--gpus", "8"}), 2);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("--machine NAME|FILE (--calibrate writes one) is required"),
          Not(HasSubstr("--gpus N is"))));
}

// The output of --calibrate is a machine file for --machine. Measuring takes up
// to four minutes.
TEST_F(PlanTest, CalibratesThisMachineForItself) {
  if (std::getenv("BRIGADE_LONG_TESTS") == nullptr)
    GTEST_SKIP() << "takes minutes: make test-faults";
  const std::string file = (folder_ / "machine.json").string();
  ASSERT_EQ(plan({"--calibrate", "--nproc", "2", "--machine-out", file}), 0)
      << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("bf16 products"),
          HasSubstr("all-reduce of 4096 bytes among 2"),
          HasSubstr("wrote " + file)));
  ASSERT_EQ(
      plan(
          {"--machine",
           file,
           "--gpus",
           "2",
           "--global-batch",
           "2",
           "--seq",
           "32",
           "--explain",
           "tp2-mb2"}),
      0)
      << err();
  EXPECT_THAT(out(), HasSubstr("this machine, 2 ranks"));
}

TEST_F(PlanTest, AnUnknownMachineListsTheKnownOnes) {
  EXPECT_EQ(plan({"--machine", "h1000", "--gpus", "8"}), 2);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("unknown machine 'h1000'; known are a100-40"),
          HasSubstr("device.memory_bytes")));
}

TEST_F(PlanTest, AModelThatFitsNowhereSaysWhatWouldDo) {
  EXPECT_EQ(
      plan(
          {"--machine",
           BRIGADE_SOURCE_DIR "/bench/published/v100.json",
           "--gpus",
           "1",
           "--global-batch",
           "8"}),
      2);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("fits: dp1-tp1-pp1-cp1-"),
          HasSubstr("It would fit with devices of"),
          HasSubstr("of these")));
}

TEST_F(PlanTest, AMachineFileAndAPageWork) {
  const std::string file = (folder_ / "machine.json").string();
  std::ofstream(file) << R"({
    "name": "two nodes", "devices_per_node": 4,
    "device": {"name": "mine", "memory_bytes": 80000000000,
      "memory_bytes_per_s": 2e12, "compute_units": 100, "bf16_flops": 3e14},
    "intra": {"bytes_per_s": 3e11, "latency_s": 4e-6},
    "inter": {"bytes_per_s": 5e10, "latency_s": 1e-5}})";
  const std::string page = (folder_ / "plan.html").string();
  ASSERT_EQ(
      plan(
          {"--machine",
           file,
           "--gpus",
           "8",
           "--global-batch",
           "64",
           "--html",
           page}),
      0)
      << err();
  EXPECT_THAT(
      read_if_there(page),
      AllOf(HasSubstr("8 x mine"), Not(HasSubstr("<script"))));
}

}  // namespace
}  // namespace brigade
