// Runs that learn from a teacher's likeliest tokens, in every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

constexpr int kTaughtSteps = 10;

class DistillRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    const std::string words = testing::made_up_text(4000);
    std::string lines;
    for (size_t i = 0; i < 60; ++i)
      lines +=
          json{
              {"prompt", words.substr(40 * i, 5 + i % 4)},
              {"completion", words.substr(50 * i + 7, 3 + 7 * i % 29)}}
              .dump() +
          "\n";
    testing::write_file(*folder_ / "lines.jsonl", lines);
    testing::write_file(*folder_ / "chat.jinja", "{{ messages }}");
    run(
        {"prepare",
         "--chat",
         (*folder_ / "lines.jsonl").string(),
         "--template",
         (*folder_ / "chat.jinja").string(),
         "--tokenizer",
         "bytes",
         "--out",
         data()});
    auto config = testing::tiny_run(data());
    config["model"]["dtype"] = "float32";
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 8},
        {"gradient_accumulation_steps", 1},
        {"total_train_steps", kTaughtSteps},
        {"learning_rate", 3e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
    train_losses("teacher", {"training.seed=7"});
    write_top_k("packed.topk", {"--by-document"});
    write_top_k("windows.topk", {"--seq-length", "48"});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string data() { return (*folder_ / "data").string(); }
  static std::string run_dir(const std::string& name) {
    return (*folder_ / name).string();
  }
  static std::string run(const Arguments& arguments) {
    const ProgramResult result = testing::run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << ": " << result.err;
    return result.out;
  }
  static Arguments top_k(
      const std::string& name,
      const Arguments& more,
      const std::string& k = "6") {
    Arguments all = {
        "evaluate",
        "--run",
        run_dir("teacher"),
        "--dataset",
        data(),
        "--top-k",
        run_dir(name),
        "--k",
        k};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::string write_top_k(
      const std::string& name,
      const Arguments& more) {
    return run(top_k(name, more));
  }
  static std::vector<double> train_losses(
      const std::string& name,
      std::vector<std::string> overrides,
      int ranks = 1) {
    overrides.push_back("logging.run_dir=" + run_dir(name));
    testing::train_as_threads(*folder_ / "run.json", ranks, overrides);
    return losses_of(run_dir(name));
  }
  static std::vector<std::string> taught(const std::string& file) {
    std::vector<std::string> overrides = {
        "training.loss=distill",
        "training.distill_weight=0.7",
        "dataset.teacher=" + run_dir(file)};
    if (file == "packed.topk")
      overrides.push_back("dataset.packing=best_fit");
    return overrides;
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

testing::RunsFolder* DistillRun::folder_ = nullptr;

struct TaughtLayout {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
};

TEST_F(DistillRun, EveryLayoutLearnsWhatOneRankLearns) {
  const std::string small = "training.micro_batch_size=2";
  const std::string four = "training.gradient_accumulation_steps=4";
  const std::string two = "training.gradient_accumulation_steps=2";
  const std::vector<TaughtLayout> layouts = {
      {"micro", 1, {small, four}},
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
        "distributed.cp_size=2"}}};
  for (const std::string file : {"packed.topk", "windows.topk"}) {
    const auto expected = train_losses("one_" + file, taught(file));
    ASSERT_EQ(expected.size(), static_cast<size_t>(kTaughtSteps));
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (const TaughtLayout& layout : layouts) {
      SCOPED_TRACE(file + " " + layout.name);
      auto overrides = taught(file);
      overrides.insert(
          overrides.end(), layout.overrides.begin(), layout.overrides.end());
      const auto losses =
          train_losses(layout.name + file, overrides, layout.ranks);
      EXPECT_LT(testing::largest_relative_difference(losses, expected), 1e-5);
    }
  }
}

TEST_F(DistillRun, WithoutAShareOfTheTeacherItIsCrossEntropy) {
  auto overrides = taught("windows.topk");
  overrides[1] = "training.distill_weight=0";
  EXPECT_LT(
      testing::largest_relative_difference(
          train_losses("no_share", overrides), train_losses("plain", {})),
      1e-5);
}

TEST_F(DistillRun, AModelHasNothingToLearnFromItself) {
  auto overrides = taught("windows.topk");
  overrides[1] = "training.distill_weight=1";
  overrides.insert(
      overrides.end(),
      {"model.config=null",
       "model.name=" + run_dir("itself"),
       "model.init=pretrained",
       "training.total_train_steps=1"});
  run({"export", "--run", run_dir("teacher"), "--out", run_dir("itself")});
  EXPECT_NEAR(train_losses("alike", overrides).at(0), 0, 1e-5);
}

TEST_F(DistillRun, TheTeachersFileIsTheSameFromEveryLayout) {
  const std::string expected = testing::read_file(*folder_ / "packed.topk");
  for (const std::string axis : {"dp", "tp", "pp"}) {
    write_top_k(
        axis + ".topk",
        {"--by-document",
         "--batch",
         "3",
         "--nproc",
         "2",
         "distributed." + axis + "_size=2"});
    const std::string found = testing::read_file(*folder_ / (axis + ".topk"));
    // Log-probabilities differ in their last bits, and the checksums with them.
    EXPECT_EQ(found.size(), expected.size()) << axis;
    auto overrides = taught("packed.topk");
    overrides[2] = "dataset.teacher=" + run_dir(axis + ".topk");
    overrides.push_back("training.total_train_steps=3");
    const auto losses = train_losses("from_" + axis, overrides);
    auto one = losses_of(run_dir("one_packed.topk"));
    one.resize(3);
    EXPECT_LT(testing::largest_relative_difference(losses, one), 1e-5) << axis;
  }
}

TEST_F(DistillRun, ARunGoesOnWithItsTeacherAlone) {
  auto overrides = taught("packed.topk");
  overrides.push_back("checkpoint.save_frequency=5");
  overrides.push_back("training.total_train_steps=5");
  train_losses("half", overrides);
  overrides = taught("packed.topk");
  overrides.push_back(
      "checkpoint.load_path=" + run_dir("half") + "/checkpoints/5");
  const auto rest = train_losses("rest", overrides);
  const auto whole = losses_of(run_dir("one_packed.topk"));
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 5, whole.end()));
  run(top_k("other.topk", {"--by-document"}, "5"));
  overrides[2] = "dataset.teacher=" + run_dir("other.topk");
  EXPECT_THAT(
      complaint(overrides), HasSubstr("dataset.teacher (its fingerprint)"));
}

TEST_F(DistillRun, WhatCannotBeIsNamed) {
  EXPECT_THAT(
      complaint(
          {"training.loss=distill",
           "dataset.document_epochs=true",
           "dataset.mixture=[{\"name\": \"a\"}]"}),
      AllOf(
          HasSubstr("write it once with `brigade evaluate"),
          HasSubstr("reads one dataset"),
          HasSubstr("leave /dataset/document_epochs")));
  EXPECT_THAT(
      complaint({"dataset.teacher=" + run_dir("packed.topk")}),
      HasSubstr("has no meaning with /training/loss"));
  EXPECT_THAT(
      complaint({"training.distill_weight=0.5"}),
      HasSubstr("set loss to \"distill\""));
  EXPECT_THAT(
      testing::run_program(top_k("no.topk", {}, "260")).err,
      HasSubstr("--k 260 is more than the vocabulary of 259"));
  EXPECT_THAT(
      testing::run_program(top_k("no.topk", {"--max-tokens", "9"})).err,
      HasSubstr("is of the whole dataset"));
}

}  // namespace
}  // namespace brigade
