// Runs that learn from a teacher's likeliest tokens, in every layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "brigade/data/teacher_file.h"
#include "brigade/data/token_dataset.h"
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

TEST_F(DistillRun, AdaptersLearnFromATeacherInEveryLayout) {
  run({"export", "--run", run_dir("teacher"), "--out", run_dir("base")});
  auto overrides = taught("packed.topk");
  overrides.insert(
      overrides.end(),
      {"model.config=null",
       "model.name=" + run_dir("base"),
       "model.init=pretrained",
       "adapter.rank=3",
       "adapter.targets=all-linear",
       "training.total_train_steps=4",
       // An evaluation's loss is the same mixture.
       "training.eval_every=2",
       "training.eval_steps=1",
       "dataset.eval_fraction=0.2"});
  const auto expected = train_losses("adapted", overrides);
  // One with the adapter as a teacher is named as such.
  run({"export", "--run", run_dir("adapted"), "--out", run_dir("adapter")});
  run(
      {"evaluate",
       "--run",
       run_dir("base"),
       "--adapter",
       run_dir("adapter"),
       "--dataset",
       data(),
       "--top-k",
       run_dir("adapter.topk")});
  EXPECT_EQ(
      TeacherFile(*folder_ / "adapter.topk").info().model,
      run_dir("base") + " with the adapter " + run_dir("adapter"));
  overrides.insert(
      overrides.end(), {"distributed.tp_size=2", "distributed.cp_size=2"});
  EXPECT_LT(
      testing::largest_relative_difference(
          train_losses("adapted_tp_cp", overrides, 4), expected),
      1e-5);
  const auto eval_loss = [](const std::string& name) {
    return testing::read_metrics(run_dir(name))
        .at(3)
        .at("eval_loss")
        .get<double>();
  };
  EXPECT_NEAR(eval_loss("adapted_tp_cp"), eval_loss("adapted"), 1e-5);
  // Below cross-entropy alone.
  overrides[1] = "training.distill_weight=0";
  train_losses("adapted_alone", overrides, 4);
  EXPECT_LT(eval_loss("adapted"), 0.8 * eval_loss("adapted_alone"));
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

// What a file holds of all tokens.
TeacherTokens all_of(const fs::path& file, const std::string& dataset) {
  const TokenDataset data = TokenDataset::open(dataset);
  std::vector<int64_t> tokens(data.num_tokens());
  data.read(0, tokens);
  TeacherTokens all;
  TeacherFile(file).read(0, tokens, all);
  return all;
}

TEST_F(DistillRun, TheTeacherSaysTheSameInEveryLayout) {
  const TeacherTokens expected = all_of(*folder_ / "packed.topk", data());
  const std::vector<std::pair<std::string, std::vector<std::string>>> layouts =
      {{"2", {"distributed.dp_size=2"}},
       {"2", {"distributed.cp_size=2"}},
       {"2", {"distributed.pp_size=2"}},
       {"4", {"distributed.dp_size=2", "distributed.tp_size=2"}}};
  for (const auto& [ranks, axes] : layouts) {
    SCOPED_TRACE(axes[0]);
    Arguments more = {"--by-document", "--batch", "7", "--nproc", ranks};
    more.insert(more.end(), axes.begin(), axes.end());
    write_top_k("other_layout.topk", more);
    const TeacherTokens found = all_of(*folder_ / "other_layout.topk", data());
    ASSERT_EQ(found.ids.size(), expected.ids.size());
    size_t others = 0;
    for (size_t i = 0; i < expected.ids.size(); ++i) {
      others += found.ids[i] != expected.ids[i] ? 1 : 0;
      ASSERT_NEAR(found.log_probs[i], expected.log_probs[i], 1e-5) << i;
    }
    // Tokens that are as likely as one another may change places.
    EXPECT_LT(others, expected.ids.size() / 100);
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
  const auto whole = train_losses("whole", taught("packed.topk"));
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 5, whole.end()));
  run(top_k("other.topk", {"--by-document"}, "5"));
  overrides[2] = "dataset.teacher=" + run_dir("other.topk");
  EXPECT_THAT(
      complaint(overrides), HasSubstr("dataset.teacher (its fingerprint)"));
}

// 6 tokens of 12 bytes for each of 8 x 48.
TEST_F(DistillRun, ADryRunSaysWhatTheTeacherTakes) {
  Arguments arguments = {
      "train", "--config", (*folder_ / "run.json").string(), "--dry-run"};
  for (const std::string& text : taught("windows.topk"))
    arguments.push_back(text);
  EXPECT_THAT(
      run(arguments),
      AllOf(
          HasSubstr("head               27.65 kB for a step's teacher"),
          HasSubstr("6 tokens at each place")));
}

TEST_F(DistillRun, NamesOptionsThatDoNotGoWithDistillation) {
  EXPECT_THAT(
      complaint(
          {"training.loss=distill",
           "dataset.document_epochs=true",
           "dataset.name=",
           "dataset.mixture=[{\"name\": \"a\"}]"}),
      AllOf(
          HasSubstr("--dataset PREFIX --top-k FILE --seq-length 48`"),
          HasSubstr("reads one dataset"),
          HasSubstr("leave /dataset/document_epochs")));
  EXPECT_THAT(
      complaint({"dataset.teacher=" + run_dir("packed.topk")}),
      HasSubstr("has no meaning with /training/loss"));
  EXPECT_THAT(
      complaint({"training.distill_weight=0.4"}),
      HasSubstr("set loss to \"distill\""));
  EXPECT_THAT(
      testing::run_program(top_k("no.topk", {}, "260")).err,
      HasSubstr("--k 260 is more than the vocabulary of 258"));
  EXPECT_THAT(
      testing::run_program(top_k("no.topk", {"--max-tokens", "9"})).err,
      HasSubstr("is of the whole dataset"));
  fs::create_symlink("/dev/null", *folder_ / "device");
  EXPECT_THAT(
      testing::run_program(top_k("device", {})).err,
      HasSubstr("a device or a pipe"));
  EXPECT_THAT(
      run({"inspect", run_dir("windows.topk")}),
      AllOf(
          HasSubstr("of the 6 likeliest tokens, with ids below 258"),
          HasSubstr(" left for all others; the mean over "),
          HasSubstr("windows of 48 tokens")));
}

}  // namespace
}  // namespace brigade
