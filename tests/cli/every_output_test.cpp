// Every command: where a result cannot be printed or written, and when this is
// reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "brigade/files/file.h"
#include "every_command.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A command line for each command that prints its result.
const char* const kPrinting[] = {
    "--help",
    "--version",
    "prepare -i {D}/text.txt -o {T}/x -t bytes --overwrite",
    "train --config {D}/run.json --help-config",
    "train --config {D}/run.json --print-config",
    "train --config {D}/run.json --dry-run --overwrite",
    "train --config {D}/run.json --print-schedule",
    "train --help",
    "generate --run {D}/run -p a -n 2",
    "generate --run {D}/run -p a -n 2 --json",
    "generate --run {D}/run -p a -n 2 --nproc 2 distributed.tp_size=2",
    "chat --run {D}/run -n 2 --template {D}/t.jinja <<< a",
    "inspect {D}/tokens",
    "inspect {D}/model",
    "inspect {D}/run.json",
    "checkpoint list --run {D}/run",
    "checkpoint verify --run {D}/run",
    "checkpoint inspect --run {D}/run",
    "checkpoint prune --run {D}/run --keep-last 1 --dry-run",
    "evaluate --run {D}/run --text {D}/text.txt",
    "evaluate --run {D}/run --text {D}/text.txt --json",
    "evaluate --run {D}/run --text {D}/text.txt --nproc 2",
    "run -n 2 -- echo text",
    "report --run {D}/run -o {T}/page.html",
    "metrics --run {D}/run",
    "tail --run {D}/run",
    "create-config --out_dir {T} --model_name {D}/model --overwrite",
    "plan --run {D}/run --machine h100 --gpus 2",
    "plan --run {D}/run --machine h100 --gpus 2 --json",
    "submit --launcher slurm --config {D}/run.json --jobs {T} --dry-run",
    "completion bash",
    "man",
    "man train",
};

TEST_F(EveryCommand, AResultThatCannotBePrintedIsExitCode6) {
  for (const char* arguments : kPrinting) {
    EXPECT_EQ(run(arguments), 0) << arguments << "\n" << err();
    for (const char* lost : {">/dev/full", ">&-"}) {
      EXPECT_EQ(run(arguments, lost), 6) << arguments << " " << lost;
      EXPECT_THAT(
          err(), HasSubstr("error: cannot write the result to standard output"))
          << arguments << " " << lost;
    }
  }
}

// These do more than print, or have nothing to print here.
TEST_F(EveryCommand, EveryCommandIsAmongThoseTried) {
  std::set<std::string> tried = {
      "analyze",
      "doctor",
      "export",
      "import",
      "status",
      "tune-buckets",
      "tune-rate",
      "checkpoint"};
  for (const char* arguments : kPrinting) {
    const std::string text = arguments;
    tried.insert(text.substr(0, text.find(' ')));
  }
  std::vector<std::string> missing;
  for (const std::string& command : commands_of("")) {
    if (!tried.contains(command))
      missing.push_back(command);
  }
  EXPECT_THAT(missing, IsEmpty());
  EXPECT_GE(commands_of("").size(), 20U);
}

// A run's lines are only a log; the run is complete without them.
TEST_F(EveryCommand, ARunWhoseLinesAreLostIsTrainedToItsEnd) {
  const std::string train =
      "train --config {D}/run.json logging.run_dir={T}/run --overwrite";
  for (const char* ranks : {"", " --nproc 2"}) {
    EXPECT_EQ(run(train + ranks, ">/dev/full"), 6) << ranks;
    EXPECT_THAT(err(), HasSubstr("cannot write the result to standard output"));
    EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/2/manifest.json"));
    EXPECT_EQ(run(train + ranks, ">&-"), 6) << ranks << err();
    EXPECT_THAT(err(), HasSubstr("standard output: it is closed"));
    EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints/2/manifest.json"));
    EXPECT_EQ(run(train + ranks, ">&- 2>&- <&-"), 6) << ranks;
  }
}

TEST_F(EveryCommand, MessagesThatNobodyCanReadChangeNothing) {
  for (const char* lost : {"2>&-", "2>/dev/full"}) {
    EXPECT_EQ(run("tail", lost), 2) << lost;
    EXPECT_EQ(run("tail --run {D}/nowhere", lost), 4) << lost;
    EXPECT_EQ(run("generate --run {D}/run -p a -n 2", lost), 0) << lost;
  }
}

// Their inputs are missing: a command that read them first would report that.
TEST_F(EveryCommand, AnOutputThatCannotBeWrittenIsReportedBeforeTheWork) {
  const std::vector<std::string> outputs = {
      "evaluate --run {D}/no --task {D}/no --scores {D}/no/x",
      "export --run {D}/no --out {D}/text.txt/x",
      "export --run {D}/no --gguf {D}/no/x",
      "import --gguf {D}/no --out {D}/text.txt/x",
      "checkpoint convert --run {D}/no --out {D}/text.txt/x",
      "report --run {D}/no -o {D}/no/x",
      "plan --model {D}/no --machine h100 --gpus 2 --html {D}/no/x",
      "plan --model {D}/no --machine h100 --gpus 2 --config-out {D}/no/x",
      "plan --calibrate --machine-out {D}/no/x",
      "create-config --model_name {D}/model --out_dir {D}/text.txt/x",
      "doctor --folder {D}/text.txt/x",
      "tune-buckets --config {D}/run.json --nproc 2 --out {D}/no/x",
      "tune-rate --config {D}/run.json --widths 32 --out {D}/no/x",
      "prepare -i {D}/text.txt -t bytes -o {D}/text.txt/x",
      "completion bash --out {D}/no/x",
      "man --folder {D}/text.txt/x",
  };
  for (const std::string& arguments : outputs) {
    EXPECT_EQ(run(arguments), 6) << arguments << "\n" << err();
    EXPECT_THAT(err(), AllOf(StartsWith("error: "), HasSubstr(data_.string())))
        << arguments;
  }
  EXPECT_FALSE(fs::exists(data_ / "no"));
}

// Such as the weights that it is made of.
TEST_F(EveryCommand, AFileOfAnotherKindIsNotReplaced) {
  const std::vector<std::string> outputs = {
      "export --run {D}/model --gguf {D}/model/model.safetensors",
      "export --run {D}/model --gguf {D}/model/config.json",
      "export --run {D}/run --gguf {D}/run/checkpoints/2/manifest.json",
      "evaluate --run {D}/run --task {D}/task.jsonl --scores {D}/task.jsonl",
      "evaluate --run {D}/run --dataset {D}/tokens --top-k {D}/tokens.bin",
      "report --run {D}/run -o {D}/run/metrics.jsonl",
      "plan --run {D}/run --machine h100 --gpus 2 --html {D}/run.json",
  };
  for (const std::string& arguments : outputs) {
    fs::path path = data_;
    path += arguments.substr(arguments.rfind("{D}") + 3);
    const std::string before = read_text_file(path);
    EXPECT_EQ(run(arguments), 2) << arguments << "\n" << err();
    EXPECT_THAT(err(), HasSubstr(path.string() + "' holds something else"));
    EXPECT_EQ(read_text_file(path), before) << arguments;
  }
  for (int times = 0; times < 2; ++times)
    EXPECT_EQ(run("export --run {D}/model --gguf {T}/x.gguf"), 0) << err();
}

TEST_F(EveryCommand, AFullDiskUnderAnOutputIsExitCode6AndNoDeviceIsReplaced) {
  for (const char* arguments :
       {"evaluate --run {D}/run --task {D}/task.jsonl --scores /dev/full",
        "report --run {D}/run -o /dev/full",
        "plan --run {D}/run --machine h100 --gpus 2 --html /dev/full",
        "plan --run {D}/run --machine h100 --gpus 2 --config-out /dev/full",
        "completion bash --out /dev/full"}) {
    EXPECT_EQ(run(arguments), 6) << arguments << "\n" << err();
    EXPECT_THAT(err(), HasSubstr("'/dev/full': No space left on device"));
    ASSERT_TRUE(fs::is_character_file("/dev/full")) << arguments;
  }
  EXPECT_EQ(run("completion bash --out /dev/stdout"), 0);
  EXPECT_THAT(out(), HasSubstr("_brigade"));
}

// Limits of ulimit -v from too little for a thread to enough. With less the
// loader fails.
TEST_F(EveryCommand, TooLittleMemoryIsAMessageThatFitsTheCommand) {
  const std::string prepare =
      "prepare -i {D}/large.txt -o {T}/x -t bytes --overwrite --workers 2";
  std::ofstream(data_ / "large.txt") << std::string(40'000'000, 'a');
  size_t refused = 0;
  for (const int limit_kb : {30'000, 50'000, 60'000, 70'000, 2'000'000}) {
    const std::string limit =
        "--version; ulimit -c 0 -v " + std::to_string(limit_kb) + "; \"$B\" ";
    const int code = run(limit + prepare);
    if (code == 0 || code == 127)
      continue;
    ++refused;
    EXPECT_EQ(code, 1) << limit_kb;
    EXPECT_THAT(
        err(),
        AnyOf(
            StartsWith("error: out of memory; use fewer --workers"),
            StartsWith("error: cannot start a thread"),
            StartsWith("error: [file] out of memory")))
        << limit_kb;
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace brigade
