// What `brigade train` computes and leaves behind, through the program itself.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::largest_relative_difference;
using testing::losses_of;
using ::testing::Not;
using testing::ProgramResult;

constexpr int kSteps = 20;

// Eight sequences a step, however they are shared out.
struct Split {
  int nproc = 1;
  int micro_batch = 8;
  int accumulation = 1;
};

class TrainingRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    // Two epochs and a half, shuffled.
    config["dataset"]["shuffle"] = true;
    config["training"] = {
        {"seq_length", 48},
        {"total_train_steps", kSteps},
        {"learning_rate", 5e-3},
        {"lr_schedule", "cosine"},
        {"warmup_steps", 3},
        {"grad_clip", 1.0}};
    testing::write_file(*folder_ / "run.json", config.dump());
    ProgramResult result = train("one", {}, {"checkpoint.save_frequency=10"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    one_rank_output_ = result.out;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static ProgramResult train(
      const std::string& name,
      const Split& split,
      const Arguments& more = {},
      const std::map<std::string, std::string>& environment = {}) {
    Arguments arguments = {
        "train",
        "--config",
        (*folder_ / "run.json").string(),
        "--nproc",
        std::to_string(split.nproc),
        fmt::format("logging.run_dir={}", run(name).string()),
        fmt::format("training.micro_batch_size={}", split.micro_batch),
        fmt::format(
            "training.gradient_accumulation_steps={}", split.accumulation)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return testing::run_program(arguments, environment);
  }
  static std::vector<double> train_losses(
      const std::string& name,
      const Split& split,
      const Arguments& more = {}) {
    const ProgramResult result = train(name, split, more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses_of(run(name));
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static std::string checkpoint(const std::string& name, int step) {
    return (run(name) / "checkpoints" / std::to_string(step)).string();
  }
  static std::vector<double> one_rank() { return losses_of(run("one")); }

  static testing::RunsFolder* folder_;
  static std::string one_rank_output_;
};

testing::RunsFolder* TrainingRun::folder_ = nullptr;
std::string TrainingRun::one_rank_output_;

TEST_F(TrainingRun, AnySplitOfTheBatchGivesTheSameLosses) {
  const std::vector<double> expected = one_rank();
  ASSERT_EQ(expected.size(), size_t{kSteps});
  EXPECT_LT(expected.back(), expected.front() - 1);
  const Split splits[] = {{1, 1, 8}, {2, 2, 2}, {4, 2, 1}};
  for (const Split& split : splits) {
    const std::string name = fmt::format(
        "{}_{}_{}", split.nproc, split.micro_batch, split.accumulation);
    EXPECT_LE(
        largest_relative_difference(train_losses(name, split), expected), 1e-5)
        << name;
  }
}

// Ranks as processes; tests/layouts has all layouts, as threads.
TEST_F(TrainingRun, EveryAxisWorksBetweenProcesses) {
  const std::string five_steps = "training.max_tokens=1920";
  const std::vector<double> expected =
      train_losses("five_steps", {}, {five_steps});
  const std::vector<double> tp_pp = train_losses(
      "tp_pp",
      {4, 2, 4},
      {five_steps,
       "distributed.tp_size=2",
       "distributed.pp_size=2",
       "distributed.sequence_parallel=true",
       "distributed.pp_engine=zero_bubble"});
  EXPECT_LE(largest_relative_difference(tp_pp, expected), 1e-5);
  const std::vector<double> dp_cp = train_losses(
      "dp_cp",
      {4, 2, 2},
      {five_steps, "distributed.cp_size=2", "training.check_replicas_every=1"});
  EXPECT_LE(largest_relative_difference(dp_cp, expected), 1e-5);
}

TEST_F(TrainingRun, AWireOfHalfTheBytesKeepsTheLossesWithinItsRounding) {
  const std::vector<double> exact = train_losses("fp32_wire", {2, 2, 2});
  for (const std::string wire : {"bf16", "fp16"}) {
    const std::vector<double> rounded = train_losses(
        wire + "_wire", {2, 2, 2}, {"distributed.grad_wire=" + wire});
    // The first loss is before any gradient; later ones show the rounding.
    EXPECT_EQ(rounded.front(), exact.front()) << wire;
    EXPECT_NE(rounded.back(), exact.back()) << wire;
    EXPECT_LE(largest_relative_difference(rounded, exact), 5e-3) << wire;
  }
}

// What is lost in a step comes with the next ones.
TEST_F(TrainingRun, AWireWithErrorFeedbackKeepsTheLossesClose) {
  const std::vector<double> exact = train_losses("fp32_wire_exact", {2, 2, 2});
  for (const std::string wire : {"int8", "powersgd"}) {
    const std::vector<double> rounded = train_losses(
        wire + "_wire", {2, 2, 2}, {"distributed.grad_wire=" + wire});
    EXPECT_EQ(rounded.front(), exact.front()) << wire;
    EXPECT_NE(rounded.back(), exact.back()) << wire;
    EXPECT_LE(
        largest_relative_difference(rounded, exact),
        wire == "int8" ? 0.01 : 0.1)
        << wire;
  }
}

TEST_F(TrainingRun, TheNaiveGradSyncGivesTheSameLosses) {
  const Arguments naive = {"distributed.grad_sync=per_param"};
  EXPECT_LE(
      largest_relative_difference(
          train_losses("per_param", {2, 2, 2}, naive), one_rank()),
      1e-5);
}

// Of 125 windows 37 are held out: four whole batches.
TEST_F(TrainingRun, AnEvaluationCountsNoWindowTwice) {
  const auto evaluate = [](const std::string& name, const std::string& steps) {
    return train(
        name,
        {},
        {"training.total_train_steps=1",
         "training.eval_every=1",
         "dataset.eval_fraction=0.3",
         "training.eval_steps=" + steps});
  };
  const ProgramResult four = evaluate("four_batches", "4");
  EXPECT_THAT(four.out, Not(HasSubstr("training.eval_steps")));
  const ProgramResult all = evaluate("all_batches", "50");
  EXPECT_THAT(
      all.out,
      HasSubstr("an evaluation has 4 of training.eval_steps = 50 batches"));
  const auto eval_loss = [](const std::string& name) {
    return testing::read_metrics(run(name)).at(0).at("eval_loss");
  };
  EXPECT_EQ(eval_loss("four_batches"), eval_loss("all_batches"));
}

TEST_F(TrainingRun, TwoRunsOfOneLayoutAgreeBitForBit) {
  const std::vector<double> first = train_losses("first", {2, 4, 1});
  const std::vector<double> second = train_losses("second", {2, 4, 1});
  ASSERT_EQ(first.size(), size_t{kSteps});
  EXPECT_EQ(first, second);
  for (const char* file :
       {"model-rank-0.safetensors", "model-rank-1.safetensors"}) {
    const auto tensors = [&](const std::string& name) {
      return testing::tensor_bytes(fs::path(checkpoint(name, kSteps)) / file);
    };
    EXPECT_FALSE(tensors("first").empty());
    EXPECT_TRUE(tensors("first") == tensors("second")) << file;
  }
}

TEST_F(TrainingRun, AContinuedRunRepeatsTheRunBitForBit) {
  const std::vector<double> whole = one_rank();
  const Arguments load = {"checkpoint.load_path=" + checkpoint("one", 10)};
  const std::vector<double> rest = train_losses("continued", {}, load);
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 10, whole.end()));
  const auto metrics = testing::read_metrics(run("continued"));
  ASSERT_EQ(metrics.size(), 10U);
  EXPECT_EQ(metrics.front().at("step"), 11);
  EXPECT_EQ(metrics.front().at("tokens"), 11 * 8 * 48);
}

// Masters are two halves in memory and whole in files; the vocabulary of 259 is
// padded on the second rank.
TEST_F(TrainingRun, ARunInBfloat16ContinuesBitForBit) {
  const Split split{2, 4, 2};
  Arguments arguments = {
      "model.dtype=bfloat16",
      "distributed.tp_size=2",
      "checkpoint.save_frequency=10"};
  const std::vector<double> whole = train_losses("bf16_tp", split, arguments);
  ASSERT_EQ(whole.size(), size_t{kSteps});
  arguments.push_back("checkpoint.load_path=" + checkpoint("bf16_tp", 10));
  EXPECT_EQ(
      train_losses("bf16_tp_continued", split, arguments),
      std::vector<double>(whole.begin() + 10, whole.end()));
  for (const char* file :
       {"optimizer-rank-0.safetensors", "optimizer-rank-1.safetensors"}) {
    const auto contents = [&](const std::string& name) {
      return testing::tensor_bytes(fs::path(checkpoint(name, kSteps)) / file);
    };
    EXPECT_TRUE(contents("bf16_tp") == contents("bf16_tp_continued")) << file;
  }
}

TEST_F(TrainingRun, ARunContinuesUnderAnotherLayout) {
  const std::vector<double> whole = one_rank();
  const std::vector<double> rest = train_losses(
      "moved",
      {2, 4, 2},
      {"distributed.tp_size=2",
       "checkpoint.load_path=" + checkpoint("one", 10)});
  EXPECT_LE(
      largest_relative_difference(
          rest, std::vector<double>(whole.begin() + 10, whole.end())),
      1e-5);
}

TEST_F(TrainingRun, TwoRanksTrainAsOneInBfloat16) {
  const Arguments bf16 = {
      "model.dtype=bfloat16", "training.check_replicas_every=3"};
  const std::vector<double> one = train_losses("one_bf16", {}, bf16);
  EXPECT_LE(
      largest_relative_difference(
          train_losses("two_bf16", {2, 4, 1}, bf16), one),
      1e-2);
  EXPECT_LE(largest_relative_difference(one, one_rank()), 1e-2);
}

TEST_F(TrainingRun, MetricsHaveOneObjectAStepWithAllKeys) {
  const auto metrics = testing::read_metrics(run("one"));
  ASSERT_EQ(metrics.size(), size_t{kSteps});
  for (int step = 1; step <= kSteps; ++step) {
    const auto& line = metrics[static_cast<size_t>(step - 1)];
    EXPECT_EQ(line.at("step"), step);
    EXPECT_EQ(line.at("tokens"), step * 8 * 48);
    for (const char* key :
         {"loss",
          "grad_norm",
          "tokens_per_second",
          "tokens_per_second_per_device",
          "mfu",
          "memory_gb",
          "step_ms"})
      EXPECT_GT(line.at(key).get<double>(), 0) << key << " of step " << step;
    EXPECT_GE(line.at("exposed_comm_ms").get<double>(), 0);
  }
  EXPECT_LT(metrics[0].at("lr"), 5e-3);
  EXPECT_NEAR(metrics[2].at("lr").get<double>(), 5e-3, 1e-12);
}

// What a run says of its speed, of a model whose heads are wider than its
// hidden size: 4 heads of 16 on 32.
TEST_F(TrainingRun, MetricsObeyTheirFormulasInEveryLayout) {
  constexpr int kAttentionWidth = 4 * 16;
  constexpr int kKeyValueWidth = 2 * 16;
  constexpr int kParameters =
      4 * (2 * 32 * kAttentionWidth + 2 * 32 * kKeyValueWidth + 3 * 32 * 44 +
           2 * 32) +
      259 * 32 + 32;
  constexpr double kFlopsPerToken =
      6.0 * kParameters + 12.0 * 4 * kAttentionWidth * 48;
  constexpr int kTokensPerStep = 8 * 48;
  // The rate that MFU is a part of is put where runs look for it.
  const fs::path cache = *folder_ / "cache";
  const auto peak_of = [&] {
    const auto rates = nlohmann::json::parse(
        testing::read_file(cache / "brigade" / "peak_rate.json"));
    EXPECT_EQ(rates.size(), 1U);
    return rates.front().get<double>();
  };
  for (const char* axis : {"dp", "tp", "pp", "cp"}) {
    const std::string name = fmt::format("formulas_{}", axis);
    const ProgramResult result = train(
        name,
        {2, axis == std::string("dp") ? 2 : 4, 2},
        {"model.config.head_dim=16",
         "training.total_train_steps=2",
         fmt::format("distributed.{}_size=2", axis)},
        {{"XDG_CACHE_HOME", cache.string()}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(
        result.out,
        ::testing::HasSubstr(
            fmt::format("{:.3f}K parameters in float32, ", kParameters / 1e3)))
        << axis;
    const auto metrics = testing::read_metrics(run(name));
    ASSERT_EQ(metrics.size(), 2U) << axis;
    for (const auto& line : metrics) {
      const auto value = [&](const char* key) {
        return line.at(key).get<double>();
      };
      const double per_device = value("tokens_per_second_per_device");
      EXPECT_DOUBLE_EQ(per_device, value("tokens_per_second") / 2) << axis;
      EXPECT_NEAR(
          value("tokens_per_second") * value("step_ms") / 1e3,
          kTokensPerStep,
          1e-6)
          << axis;
      EXPECT_NEAR(
          value("mfu") / (100 * per_device * kFlopsPerToken / peak_of()),
          1,
          1e-9)
          << axis;
    }
  }
}

TEST_F(TrainingRun, PartsOfEachStepAddUpAndAreOfTheRightAxis) {
  for (const char* axis : {"dp", "tp", "pp", "cp"}) {
    const std::string name = fmt::format("parts_{}", axis);
    const ProgramResult result = train(
        name,
        {2, axis == std::string("dp") ? 2 : 4, 2},
        {"training.total_train_steps=2",
         "logging.run_name=parts",
         "logging.prometheus_file=" + (*folder_ / "run.prom").string(),
         fmt::format("distributed.{}_size=2", axis)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const auto& line : testing::read_metrics(run(name))) {
      const auto& parts = line.at("time_ms");
      double sum = 0;
      for (const auto& [part, ms] : parts.items()) {
        EXPECT_GE(ms.get<double>(), 0) << axis << " " << part;
        sum += ms.get<double>();
      }
      EXPECT_NEAR(sum, line.at("step_ms").get<double>(), 0.01) << axis;
      EXPECT_GT(parts.at("compute"), 0) << axis;
      for (const char* other : {"tp", "cp", "pp"})
        EXPECT_EQ(parts.at(other) > 0, other == std::string(axis))
            << axis << " " << other;
    }
    EXPECT_THAT(
        testing::read_file(*folder_ / "run.prom"),
        ::testing::HasSubstr("brigade_step{run=\"parts\"} 2\n"));
  }
}

TEST_F(TrainingRun, EventsSayHowTheRunBeganWentOnAndEnded) {
  const auto train_to = [&](int steps, const char* load_path) {
    return train(
        "events",
        {1, 4, 2},
        {fmt::format("training.total_train_steps={}", steps),
         fmt::format("checkpoint.load_path={}", load_path)});
  };
  ASSERT_EQ(train_to(2, "").exit_code, 0);
  const ProgramResult more = train_to(3, "auto");
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(
      more.out,
      ::testing::AllOf(
          ::testing::HasSubstr("continuing '" + checkpoint("events", 2)),
          ::testing::HasSubstr("after step 2 of 3")));
  std::vector<std::string> kinds;
  std::vector<nlohmann::json> starts;
  std::ifstream file(run("events") / "events.jsonl");
  for (std::string text; std::getline(file, text);) {
    const auto event = nlohmann::json::parse(text);
    kinds.push_back(event.at("event"));
    if (kinds.back() == "start")
      starts.push_back(event);
  }
  EXPECT_THAT(
      kinds,
      ::testing::ElementsAre(
          "start",
          "checkpoint",
          "end",
          "message",  // the number of steps is another one
          "message",  // what is continued
          "start",
          "checkpoint",
          "end"));
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_EQ(starts[0].at("step"), 0);
  EXPECT_EQ(starts[1].at("step"), 2);
  EXPECT_EQ(starts[1].at("origins").at("checkpoint.load_path"), "command line");
  EXPECT_EQ(
      starts[1].at("environment").at("processors"),
      ::sysconf(_SC_NPROCESSORS_ONLN));
}

TEST_F(TrainingRun, StepsArePrintedAsPicotronDoes) {
  const std::regex line(
      R"(\[rank \d+\] Step: (\d+)/\d+ +\| Loss: +\d+\.\d{4} \| )"
      R"(Global batch size: +[\d.]+[KMBT]? \| Tokens/s: +[\d.]+[KMBT]? \| )"
      R"(Tokens/s/CPU: +[\d.]+[KMBT]? \| Tokens: +[\d.]+[KMBT]? \| )"
      R"(MFU: +\d+\.\d\d% \| Memory usage: +\d+\.\d\dGB)");
  int steps = 0;
  for (std::sregex_iterator it(
           one_rank_output_.begin(), one_rank_output_.end(), line);
       it != std::sregex_iterator();
       ++it)
    EXPECT_EQ((*it)[1].str(), std::to_string(++steps));
  EXPECT_EQ(steps, kSteps) << one_rank_output_;
  // Piped: no progress bar, and at the end where everything is.
  EXPECT_THAT(one_rank_output_, ::testing::Not(::testing::HasSubstr("\r")));
  EXPECT_THAT(
      one_rank_output_,
      ::testing::AllOf(
          ::testing::HasSubstr("final loss"),
          ::testing::HasSubstr(checkpoint("one", kSteps)),
          ::testing::HasSubstr("next: brigade generate")));
}

TEST_F(TrainingRun, GenerateContinuesAPrompt) {
  const Arguments arguments = {
      "generate",
      "--checkpoint",
      run("one").string(),
      "--prompt",
      "ba",
      "--max-tokens",
      "24",
      "--temperature",
      "0"};
  const ProgramResult result = testing::run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ::testing::StartsWith("ba"));
  EXPECT_GT(result.out.size(), 10U);
  EXPECT_EQ(testing::run_program(arguments).out, result.out);

  Arguments on_two_ranks = arguments;
  on_two_ranks.insert(
      on_two_ranks.end(), {"--nproc", "2", "distributed.tp_size=2"});
  const ProgramResult two = testing::run_program(on_two_ranks);
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(two.out, result.out);
}

TEST_F(TrainingRun, GenerateTakesPromptsFromAFileAndFromStandardInput) {
  const fs::path prompts = *folder_ / "prompts.txt";
  std::ofstream(prompts) << "ba\n\n{\"prompt\": \"be\"}\n";
  Arguments arguments = {
      "generate",
      "--checkpoint",
      run("one").string(),
      "--max-tokens",
      "9",
      "--temperature",
      "0",
      "--json"};
  const Arguments common = arguments;
  arguments.insert(
      arguments.end(), {"--prompt", "bo", "--prompts", prompts.string()});
  const ProgramResult result = testing::run_program(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> texts;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto text = nlohmann::json::parse(line);
    EXPECT_LE(text.at("generated_tokens"), 9);
    EXPECT_THAT(
        text.at("text").get<std::string>(),
        ::testing::StartsWith(text.at("prompt").get<std::string>()));
    texts.push_back(text.at("prompt"));
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("bo", "ba", "be"));
  EXPECT_THAT(result.err, ::testing::ContainsRegex("tokens in .* tokens/s"));

  // Only the first rank has a standard input.
  Arguments piped = {
      "-c",
      fmt::format(
          "printf 'bo\\nba\\nbe\\n' | {} {} --prompts - --nproc 2 "
          "distributed.tp_size=2",
          testing::program_path(),
          fmt::join(common, " "))};
  const ProgramResult from_pipe = testing::StartedProgram("bash", piped).wait();
  EXPECT_EQ(from_pipe.exit_code, 0) << from_pipe.err;
  EXPECT_EQ(from_pipe.out, result.out);
}

TEST_F(TrainingRun, GenerateWarnsPastThePositionsAndRefusesWhatIsNoPrompt) {
  const Arguments arguments = {
      "generate", "--checkpoint", run("one").string(), "-p", "ba", "-n", "200"};
  const ProgramResult result = testing::run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      ::testing::HasSubstr("warning: the longest prompt of 3 tokens"));
  const fs::path prompts = *folder_ / "wrong.jsonl";
  std::ofstream(prompts) << "ba\n{\"text\": 1}\n";
  const ProgramResult wrong = testing::run_program(
      {"generate",
       "--checkpoint",
       run("one").string(),
       "--prompts",
       prompts.string()});
  EXPECT_EQ(wrong.exit_code, 4);
  EXPECT_THAT(wrong.err, ::testing::HasSubstr("line 2"));
}

TEST_F(TrainingRun, InspectShowsWhereACheckpointStandsAndWhatItHolds) {
  const fs::path copy = *folder_ / "inspected";
  const std::vector<double> losses = train_losses(
      "inspected",
      {2, 4, 2},
      {"distributed.tp_size=2",
       "training.total_train_steps=12",
       "checkpoint.save_frequency=8"});
  ASSERT_EQ(losses.size(), 12U);
  const auto inspect = [](const fs::path& path, const Arguments& more = {}) {
    Arguments arguments = {"inspect", path.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return testing::run_program(arguments);
  };
  // A run shows its latest checkpoint.
  const ProgramResult latest = inspect(copy);
  EXPECT_EQ(latest.exit_code, 0) << latest.err;
  EXPECT_THAT(
      latest.out,
      ::testing::AllOf(
          ::testing::HasSubstr(checkpoint("inspected", 12)),
          ::testing::HasSubstr("12 of 12 steps, 4,608 tokens"),
          ::testing::HasSubstr("dp 1 * pp 1 * cp 1 * tp 2 (2 ranks)"),
          ::testing::HasSubstr("LlamaForCausalLM"),
          ::testing::HasSubstr("4 heads of 8, 2 key/value heads"),
          ::testing::HasSubstr("259, tied head"),
          ::testing::HasSubstr("all 38 of the model"),
          ::testing::HasSubstr("exp_avg.*"),
          ::testing::ContainsRegex("steps saved +8, 12"),
          // Put together from two ranks' pieces.
          ::testing::ContainsRegex("embed_tokens.weight +F32 +\\[259, 32\\]"),
          ::testing::HasSubstr("* = 0-3")));
  EXPECT_THAT(
      inspect(checkpoint("inspected", 8)).out,
      ::testing::HasSubstr("8 of 12 steps"));
  EXPECT_THAT(
      inspect(checkpoint("inspected", 8), {"--all"}).out,
      ::testing::HasSubstr("exp_avg_sq.model.layers.3.mlp.up_proj.weight"));

  // A file in another's place.
  const fs::path broken = checkpoint("inspected", 12);
  fs::copy_file(
      broken / "optimizer-rank-1.safetensors",
      broken / "model-rank-1.safetensors",
      fs::copy_options::overwrite_existing);
  EXPECT_THAT(
      inspect(broken).err,
      ::testing::AllOf(
          ::testing::HasSubstr("model-rank-1.safetensors"),
          ::testing::HasSubstr("were written")));
}

// The weight in bfloat16, main_grad and the master weight in float32, two
// moments: 18 bytes per parameter, and 300 MB for everything else.
// 300 MB with Debian 12's libtorch. A CUDA build's libraries alone take more:
// there it is what the smallest run takes, and 110 MB.
TEST_F(TrainingRun, ARankNeedsAtMost18BytesAParameterIn300MB) {
  constexpr int64_t kHidden = 512;
  constexpr int64_t kFfn = 2048;
  constexpr int64_t kLayers = 6;
  const ProgramResult result = train(
      "large",
      {1, 1, 1},
      {"model.dtype=bfloat16",
       "training.total_train_steps=2",
       fmt::format("model.config.hidden_size={}", kHidden),
       fmt::format("model.config.intermediate_size={}", kFfn),
       fmt::format("model.config.num_hidden_layers={}", kLayers),
       "model.config.num_key_value_heads=4"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  fs::remove_all(run("large"));
  constexpr int64_t kParameters =
      kLayers * (4 * kHidden * kHidden + 3 * kHidden * kFfn + 2 * kHidden) +
      259 * kHidden + kHidden;
  const ProgramResult smallest = train("smallest", {1, 1, 1});
  ASSERT_EQ(smallest.exit_code, 0) << smallest.err;
  const int64_t other_bytes =
      std::max<int64_t>(300'000'000, smallest.peak_bytes + 110'000'000);
  EXPECT_LE(result.peak_bytes, 18 * kParameters + other_bytes)
      << kParameters << " parameters";
  // So many are there that one more full gradient would show.
  EXPECT_GT(result.peak_bytes, 18 * kParameters);
}

}  // namespace
}  // namespace brigade
