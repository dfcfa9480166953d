// Every command: how a model is given, what is reported about a wrong option,
// number or name, and that printed commands can be copied.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/shell_word.h"
#include "every_command.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(EveryCommand, RunTakesARunACheckpointAndAHuggingFaceFolder) {
  // The exit code for a Hugging Face folder, and the words that explain one
  // other than 0.
  struct Named {
    std::string arguments;  // {R} is the model
    int code_of_model = 0;
    std::string words;
    int code = 0;  // for a run and a checkpoint
  };
  const std::vector<Named> commands = {
      {"generate --run {R} -p a -n 2 -t 0 --tokenizer bytes"},
      {"chat --run {R} -n 2 --tokenizer bytes --template {D}/t.jinja <<< a"},
      {"evaluate --run {R} --text {D}/text.txt --tokenizer bytes"},
      {"export --run {R} --out {T}/new"},
      {"inspect --run {R}"},
      {"plan --run {R} --machine h100 --gpus 2"},
      {"checkpoint list --run {R}", 4, "is no checkpoint and holds none"},
      {"checkpoint verify --run {R}", 4, "is no checkpoint and holds none"},
      {"checkpoint inspect --run {R}", 4, "manifest.json"},
      {"checkpoint convert --run {R} --out {T}/new", 4, "manifest.json"},
      {"report --run {R} -o {T}/page.html", 2, "is a Hugging Face folder"},
      {"metrics --run {R}", 2, "is a Hugging Face folder"},
      {"tail --run {R}", 2, "is a Hugging Face folder"},
      {"analyze --run {R}", 2, "is a Hugging Face folder", 4},
  };
  const auto with = [](std::string text, const std::string& model) {
    return text.replace(text.find("{R}"), 3, model);
  };
  for (const Named& each : commands) {
    for (const char* model :
         {"{D}/run",

          "{D}/run/checkpoints",
          "{D}/run/checkpoints/2",
          "{D}/model"}) {
      fs::remove_all(folder_ / "new");
      const bool is_model = std::string(model) == "{D}/model";
      EXPECT_EQ(
          run(with(each.arguments, model)),
          is_model ? each.code_of_model : each.code)
          << with(each.arguments, model) << "\n"
          << err();
      if (is_model) {
        EXPECT_THAT(err(), HasSubstr(each.words));
      }
    }
    // The help shows one spelling.
    const std::string command =
        each.arguments.substr(0, each.arguments.find(" --"));
    EXPECT_EQ(run(command + " --help"), 0);
    EXPECT_THAT(
        out(), AllOf(HasSubstr("  --run DIR"), Not(HasSubstr("--checkpoint"))));
  }
}

TEST_F(EveryCommand, OlderSpellingsOfAModelStay) {
  for (const char* arguments :
       {"generate -c {D}/run -p a -n 2",
        "generate --checkpoint {D}/run -p a -n 2",
        "evaluate -c {D}/run --text {D}/text.txt",
        "evaluate --checkpoint {D}/run --text {D}/text.txt",
        "export --checkpoint {D}/run/checkpoints --out {T}/new",
        "inspect {D}/run",
        "report {D}/run {D}/run -o {T}/page.html",
        "metrics {D}/run",
        "tail {D}/run",
        "checkpoint list {D}/run",
        "plan --model {D}/model --machine h100 --gpus 2"})
    EXPECT_EQ(run(arguments), 0) << arguments << "\n" << err();
  EXPECT_EQ(run("tail"), 2);
  EXPECT_THAT(err(), HasSubstr("[tail] --run DIR is missing"));
  EXPECT_EQ(run("generate {D}/run training.seed=1 --prompt a"), 2);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("[generate] --run DIR is missing"),
          HasSubstr("/run' is no group.key=value")));
}

// One letter is doubled; the nearest name must be the right one.
TEST_F(EveryCommand, EveryOptionsTypoNamesTheOption) {
  std::vector<std::string> commands = commands_of("");
  for (const std::string& inner : commands_of("checkpoint"))
    commands.push_back(inner);
  size_t tried = 0;
  for (const std::string& command : commands) {
    ASSERT_EQ(run(command + " --help"), 0);
    const std::string help = out();
    std::set<std::string> options;
    const std::regex pattern("\n  (?:-\\w,)?(--[a-z][a-z_-]+)");
    for (auto found = std::sregex_iterator(help.begin(), help.end(), pattern);
         found != std::sregex_iterator();
         ++found)
      options.insert((*found)[1]);
    for (const std::string& option : options) {
      const std::string typo = option.substr(0, option.size() - 1) +
                               option.substr(option.size() - 2);
      EXPECT_EQ(run(command + " " + typo), 2) << typo;
      EXPECT_THAT(
          err(),
          AllOf(
              StartsWith(
                  "error: brigade " + command + " has no option " + typo),
              HasSubstr("the nearest is " + option + " ")))
          << command;
      ++tried;
    }
  }
  EXPECT_GT(tried, 100U);
}

TEST_F(EveryCommand, ANumberThatIsNoneIsNamedWithItsOption) {
  const std::vector<std::pair<std::string, std::string>> options = {
      {"prepare", "--workers"},
      {"prepare", "--train-tokenizer"},
      {"generate", "--max-tokens"},
      {"generate", "--temperature"},
      {"generate", "--top-k"},
      {"generate", "--top-p"},
      {"generate", "--seed"},
      {"generate", "--batch"},
      {"generate", "--nproc"},
      {"chat", "--max-tokens"},
      {"chat", "--seed"},
      {"evaluate", "--seq-length"},
      {"evaluate", "--max-tokens"},
      {"evaluate", "--batch"},
      {"export", "--shard-gb"},
      {"inspect", "--document"},
      {"checkpoint prune", "--keep-last"},
      {"checkpoint prune", "--keep-every"},
      {"train", "--nproc"},
      {"train", "--max-restarts"},
      {"run", "--nproc"},
      {"run", "--threads"},
      {"run", "--max-restarts"},
      {"report", "--port"},
      {"tail", "--steps"},
      {"status", "--watch"},
      {"doctor", "--nproc"},
      {"tune-buckets", "--steps"},
      {"tune-rate", "--steps"},
      {"tune-rate", "--widths"},
      {"tune-rate", "--rates"},
      {"plan", "--gpus"},
      {"plan", "--seq"},
      {"plan", "--global-batch"},
      {"plan", "--zero"},
      {"plan", "--memory-part"},
      {"plan", "--top"},
      {"submit", "--nodes"},
      {"submit", "--ranks-per-node"},
      {"submit", "--gpus-per-node"},
      {"submit", "--cpus-per-task"},
      {"create-config", "--tp"},
      {"create-config", "--mbs"},
      {"create-config", "--seq_len"},
      {"create-config", "--zero_stage"},
      {"create-config", "--num_hidden_layers"},
      {"create-config", "--total_train_steps"},
  };
  for (const auto& [command, option] : options) {
    for (const char* value : {"99999999999999999999", "1x", "nan", "''"}) {
      const std::string line = fmt::format("{} {} {}", command, option, value);
      EXPECT_EQ(run(line), 2) << line;
      EXPECT_THAT(
          err(),
          AllOf(
              StartsWith("error: " + option),
              HasSubstr("expected a "),
              Not(HasSubstr("onvert"))))
          << line;
    }
  }
  EXPECT_EQ(run("prepare -i a -o b -t bytes --workers 100000000"), 2);
  EXPECT_THAT(err(), HasSubstr("from 0 to 4096, not '100000000'"));
  for (const char* octal :
       {"prepare -i a -o b -t bytes --workers 010",
        "generate --run {D}/run -n 010",
        "generate --run {D}/run --seed -010"}) {
    EXPECT_EQ(run(octal), 2) << octal;
    EXPECT_THAT(err(), HasSubstr("without a leading 0, not '"));
  }
  EXPECT_EQ(run("generate --run {D}/run -p a -t 1e-38"), 2);
  EXPECT_THAT(err(), HasSubstr("--temperature 1e-38 is too small"));
}

TEST_F(EveryCommand, ANameThatIsNoUtf8IsNoErrorOfALibrary) {
  const std::string odd = "$'bad\\xff.txt'";  // as bash writes it
  fs::copy_file(data_ / "text.txt", folder_ / "bad\xff.txt");
  EXPECT_EQ(run("train --config {D}/run.json $'logging.run_dir=\\xff'"), 2);
  EXPECT_THAT(
      err(),
      AllOf(HasSubstr("is not valid UTF-8"), Not(HasSubstr("json.exception"))));
  EXPECT_EQ(run("evaluate --run {D}/run --json --text {T}/" + odd), 0) << err();
  EXPECT_EQ(run("prepare -t bytes -o {T}/x -i {T}/" + odd), 0) << err();
  EXPECT_EQ(run("inspect {T}/x"), 0) << err();
}

// A printed command works when it is copied.
TEST_F(EveryCommand, TheNextCommandIsQuotedForTheShell) {
  const fs::path odd = folder_ / "it's $HOME; two";
  fs::create_directory(odd);
  const std::string name = shell_word(odd.string());
  ASSERT_EQ(run("prepare -i {D}/text.txt -t bytes -o " + name + "/x"), 0);
  EXPECT_THAT(
      out(), HasSubstr(shell_word("dataset.name=" + odd.string() + "/x")));
  ASSERT_EQ(
      run("create-config --model_name {D}/model --exp_name e --out_dir " +
          name),
      0);
  EXPECT_THAT(
      out(),
      HasSubstr("--config " + shell_word((odd / "e/config.json").string())));
  ASSERT_EQ(
      run("train --config {D}/run.json " +
          shell_word("logging.run_dir=" + odd.string() + "/r")),
      0)
      << err();
  EXPECT_THAT(
      out(),
      HasSubstr("--run " + shell_word((odd / "r/checkpoints/2").string())));
}

TEST_F(EveryCommand, AWordThatJsonReadsAsSomethingElseIsQuoted) {
  for (const char* name : {"null", "\"x\""}) {
    ASSERT_EQ(
        run(fmt::format(
            "prepare -i {{D}}/text.txt -t bytes --overwrite -o {}",
            shell_word(name))),
        0)
        << err();
    EXPECT_THAT(
        out(),
        HasSubstr(
            "--config FILE " +
            shell_word("dataset.name=" + nlohmann::json(name).dump())));
    for (const char* suffix : {".bin", ".idx", ".json"})
      fs::remove(std::string(name) + suffix);
  }
  EXPECT_EQ(shell_path("-a"), "./-a");
  EXPECT_EQ(shell_path("a-b"), "a-b");
}

TEST_F(EveryCommand, ExpertsAreExportedInTheLayoutThatIsAskedFor) {
  const std::string fused = " --experts fused";
  for (const auto& [arguments, reason] :
       {std::pair{
            "--run {D}/run --out {T}/x", "LlamaForCausalLM, which has no"},
        {"--run {D}/model --out {T}/x", "LlamaForCausalLM, which has no"},
        {"--run {D}/run --gguf {T}/x", "--experts is of a Hugging Face"}}) {
    EXPECT_EQ(run("export " + (arguments + fused)), 2);
    EXPECT_THAT(err(), HasSubstr(reason)) << arguments;
  }
  EXPECT_EQ(run("export --run {D}/run --gguf {T}/x --shard-gb 1"), 2);
  EXPECT_THAT(err(), HasSubstr("--shard-gb is of a Hugging Face folder"));
  EXPECT_EQ(run("export --run {D}/run --out {T}/x --experts fuse"), 2);
  EXPECT_THAT(err(), HasSubstr("none of separate, fused"));
  ASSERT_TRUE(fs::is_empty(folder_) || !fs::exists(folder_ / "x"));
  const auto weights = [&](const std::string& name) {
    std::ifstream file(folder_ / name / "model.safetensors");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string upcycle = "export --run {D}/run --upcycle 2 --out ";
  ASSERT_EQ(run(upcycle + "{T}/fused" + fused), 0) << err();
  ASSERT_EQ(run(upcycle + "{T}/default"), 0) << err();
  EXPECT_THAT(weights("fused"), HasSubstr("0.mlp.experts.gate_up_proj\""));
  for (const char* name : {"fused", "default"}) {
    ASSERT_EQ(
        run(fmt::format(
            "export --run {{T}}/{0} --out {{T}}/{0}_again --experts separate",
            name)),
        0)
        << err();
    EXPECT_EQ(weights(std::string(name) + "_again"), weights("default"));
  }
}

TEST_F(EveryCommand, ANameOfAFileIsNotEmpty) {
  for (const char* arguments :
       {"evaluate --run {D}/run --task {D}/task.jsonl --scores ''",
        "report --run {D}/run -o ''",
        "train --config ''",
        "inspect ''",
        "prepare -i {D}/text.txt -t bytes -o .",
        "prepare -i {D}/text.txt -t bytes -o {T}/..",
        "create-config --model_name {D}/model --out_dir {T} --exp_name ''",
        "create-config --model_name {D}/model --out_dir {T} --exp_name .."})
    EXPECT_EQ(run(arguments), 2) << arguments << "\n" << err();
  EXPECT_TRUE(fs::is_empty(folder_) || !fs::exists(folder_ / "config.json"));
}

// The exit code is 4 for an input, 2 for a config and 6 for an output.
TEST_F(EveryCommand, NamesALoopOfLinks) {
  fs::create_symlink("loop", folder_ / "loop");
  fs::create_directory(folder_ / "model");
  fs::create_symlink("config.json", folder_ / "model" / "config.json");
  for (const auto& [arguments, code] :
       {std::pair{"plan --run {T}/loop --machine h100 --gpus 2", 4},
        {"plan --model {D}/model --machine {T}/loop --gpus 2", 4},
        {"inspect {D}/tokens -t {T}/loop", 4},
        {"prepare -i {D}/text.txt -o {T}/x -t {T}/loop", 4},
        {"metrics {T}/loop", 4},
        {"analyze --run {T}/loop", 4},
        {"evaluate --run {T}/model --text {D}/text.txt", 4},
        {"train --config {T}/loop", 2},
        {"create-config --model_name {T}/loop --out_dir {T}/c", 2},
        {"report --run {D}/run -o {T}/loop", 6}}) {
    EXPECT_EQ(run(arguments), code) << arguments << "\n" << err();
    EXPECT_THAT(
        err(),
        AllOf(
            HasSubstr("Too many levels of symbolic links: '"),
            HasSubstr(folder_.string())))
        << arguments;
  }
}

TEST_F(EveryCommand, APipeInPlaceOfAFileIsNamedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_directories(folder_ / "run");
  ASSERT_EQ(::mkfifo((folder_ / "run" / "metrics.jsonl").c_str(), 0600), 0);
  for (const auto& [arguments, code] :
       {std::pair{"plan --model {T}/pipe --machine h100 --gpus 2", 4},
        {"plan --model {D}/model --machine {T}/pipe --gpus 2", 4},
        {"inspect {D}/tokens -t {T}/pipe", 4},
        {"report --run {T}/run", 4},
        {"tail --run {T}/run", 4},
        {"report --run {D}/run -o {T}/pipe", 6},
        {"evaluate --run {D}/run --task {D}/task.jsonl --scores {T}/pipe", 6},
        {"export --run {D}/run --out {D}/text.txt", 2}}) {
    EXPECT_EQ(run(arguments), code) << arguments << "\n" << err();
    EXPECT_THAT(err(), HasSubstr("error: ")) << arguments;
  }
}

TEST_F(EveryCommand, RefusesStandardInputThatIsClosedOrGivenTwice) {
  EXPECT_EQ(run("prepare -t bytes -o {T}/x -i -", "<&-"), 4);
  EXPECT_THAT(err(), HasSubstr("standard input is closed"));
  EXPECT_EQ(run("prepare -t bytes -o {T}/x -i - -i /dev/stdin"), 2);
  EXPECT_THAT(err(), HasSubstr("standard input can be read once"));
}

TEST_F(EveryCommand, TextMayComeFromStandardInput) {
  EXPECT_EQ(
      run("plan --model - --machine h100 --gpus 2", "<{D}/model/config.json"),
      0)
      << err();
  EXPECT_EQ(
      run("create-config --template /dev/stdin --out_dir {T}", "<{D}/run.json"),
      0)
      << err();
  EXPECT_EQ(run("evaluate --run {D}/run --task -", "<{D}/task.jsonl"), 0)
      << err();
  EXPECT_EQ(
      run("evaluate --run {D}/run --nproc 2 --task -", "<{D}/task.jsonl"), 2);
  EXPECT_THAT(err(), HasSubstr("can be read by one rank only"));
  for (const char* name : {"-", "/dev/stdin", "<(cat {D}/text.txt)"}) {
    const std::string file = name;
    EXPECT_EQ(
        run("prepare -t bytes --overwrite -o {T}/x -i " + file,
            "<{D}/text.txt"),
        0)
        << err();
    EXPECT_EQ(
        run("generate --run {D}/run -n 2 --json --prompts " + file,
            "<{D}/text.txt"),
        0)
        << file << err();
    for (const char* ranks : {"", " --nproc 2"})
      EXPECT_EQ(
          run("evaluate --run {D}/run --text " + file + ranks, "<{D}/text.txt"),
          0)
          << file << err();
  }
}

}  // namespace
}  // namespace brigade
