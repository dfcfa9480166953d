// A run that is continued, whatever happened to it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <ctime>

#include "tests/support/program.h"
#include "tests/support/ranks_of_program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

constexpr int kSteps = 8;

class Resume : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    config["dataset"]["shuffle"] = true;
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 8},
        {"total_train_steps", kSteps},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
    ProgramResult result = train("whole", {"checkpoint.save_frequency=2"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static fs::path checkpoint(const std::string& name, int step) {
    return run(name) / "checkpoints" / std::to_string(step);
  }
  static Arguments arguments(const std::string& name, const Arguments& more) {
    return testing::train_arguments(*folder_ / "run.json", run(name), more);
  }
  static ProgramResult train(const std::string& name, const Arguments& more) {
    return testing::run_program(arguments(name, more));
  }
  // A copy of the undisturbed run, up to and with `step`.
  static void copy_run(const std::string& name, int step) {
    fs::remove_all(run(name));
    fs::copy(run("whole"), run(name), fs::copy_options::recursive);
    for (int later = step + 1; later <= kSteps; ++later)
      fs::remove_all(checkpoint(name, later));
  }
  static void damage(const fs::path& file) {
    std::string bytes = testing::read_file(file);
    bytes[bytes.size() - 5] ^= 1;
    testing::write_file(file, bytes);
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* Resume::folder_ = nullptr;

const Arguments kAuto = {"checkpoint.load_path=auto"};

TEST_F(Resume, AutoContinuesTheNewestAndMetricsHaveEachStepOnce) {
  // Steps 5 to 8 are in metrics.jsonl, but no checkpoint has them.
  copy_run("newest", 4);
  testing::write_file(
      run("newest") / "metrics.jsonl",
      testing::read_file(run("whole") / "metrics.jsonl") +
          "{\"step\": 9, \"lo");
  const ProgramResult result = train("newest", kAuto);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out, HasSubstr("continuing '" + checkpoint("newest", 4).string()));
  EXPECT_EQ(losses_of(run("newest")), losses_of(run("whole")));
}

TEST_F(Resume, AutoSaysWhyItRejectsAndFallsBack) {
  copy_run("damaged", 6);
  damage(checkpoint("damaged", 6) / "optimizer.safetensors");
  const ProgramResult result = train("damaged", kAuto);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr(
              fmt::format("rejected '{}'", checkpoint("damaged", 6).string())),
          HasSubstr("optimizer.safetensors' was changed after it was written"),
          HasSubstr(fmt::format(
              "continuing '{}'", checkpoint("damaged", 4).string()))));
  EXPECT_EQ(losses_of(run("damaged")), losses_of(run("whole")));
}

TEST_F(Resume, AutoFailsWhereNoneIsValidAndBeginsOnlyWhereNoneEverWas) {
  copy_run("none", 2);
  damage(checkpoint("none", 2) / "model.safetensors");
  ProgramResult result = train("none", kAuto);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("none of the 1 left is valid"));

  fs::remove_all(checkpoint("none", 2));
  result = train("none", kAuto);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("none of the 0 left is valid"));

  result = train("fresh", {"checkpoint.load_path=auto"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out, HasSubstr("holds no checkpoint yet: starting a new run"));
  EXPECT_EQ(losses_of(run("fresh")), losses_of(run("whole")));
}

TEST_F(Resume, ADamagedCheckpointThatIsNamedIsRefusedUnlessOnlySizesCount) {
  copy_run("named", 4);
  damage(checkpoint("named", 4) / "model.safetensors");
  const std::string load =
      "checkpoint.load_path=" + checkpoint("named", 4).string();
  const ProgramResult result = train("named", {load});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(
      result.err, AllOf(HasSubstr("model.safetensors"), HasSubstr("SHA-256")));
  EXPECT_EQ(train("named", {load, "checkpoint.verify=size"}).exit_code, 0);
}

TEST_F(Resume, AnotherRunIsRefusedKeyByKey) {
  copy_run("other", 4);
  const ProgramResult result =
      train("other", {kAuto[0], "training.seed=7", "training.seq_length=24"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("training.seed: 42 when saved, 7 now"),
          HasSubstr("training.seq_length: 48 when saved, 24 now"),
          HasSubstr("checkpoint.allow_changes")));
  // Nothing was touched.
  EXPECT_EQ(
      testing::read_file(run("other") / "metrics.jsonl"),
      testing::read_file(run("whole") / "metrics.jsonl"));

  const ProgramResult allowed = train(
      "other",
      {kAuto[0],
       "training.seed=7",
       "training.learning_rate=0.001",
       "checkpoint.allow_changes=training.seed"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_THAT(
      allowed.out,
      AllOf(
          HasSubstr("changed by checkpoint.allow_changes: training.seed"),
          HasSubstr("changed: training.learning_rate: 0.005 when saved")));
}

// As `prepare --train-tokenizer` makes one: the dataset names the folder.
TEST_F(Resume, AnotherTokenizerInTheSameFolderIsRefused) {
  for (const std::string suffix : {".bin", ".idx"})
    fs::copy_file(*folder_ / ("tokens" + suffix), *folder_ / ("own" + suffix));
  auto info =
      nlohmann::json::parse(testing::read_file(*folder_ / "tokens.json"));
  info["tokenizer"] = "tokenizer";
  testing::write_file(*folder_ / "own.json", info.dump());
  const std::string dataset = "dataset.name=" + (*folder_ / "own").string();
  const fs::path tokenizer = *folder_ / "tokenizer";
  fs::create_directory(tokenizer);
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    testing::write_file(tokenizer / name, "before");
    const ProgramResult first = train(
        "tokenizer", {"--overwrite", dataset, "training.total_train_steps=2"});
    ASSERT_EQ(first.exit_code, 0) << first.err;
    EXPECT_EQ(train("tokenizer", {kAuto[0], dataset}).exit_code, 0);
    testing::write_file(tokenizer / name, "after");
    const ProgramResult result = train("tokenizer", {kAuto[0], dataset});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("dataset.tokenizer (its SHA-256): \""));
  }
}

TEST_F(Resume, APipeInPlaceOfTheManifestIsRejectedAndNotWaitedFor) {
  copy_run("pipe", 6);
  const fs::path manifest = checkpoint("pipe", 6) / "manifest.json";
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  const std::string reason = manifest.string() + "' is not a regular file";
  const std::string folder = (run("pipe") / "checkpoints").string();
  const ProgramResult list =
      testing::run_program({"checkpoint", "list", folder});
  EXPECT_THAT(list.out, HasSubstr(reason));
  const ProgramResult verified =
      testing::run_program({"checkpoint", "verify", folder});
  EXPECT_EQ(verified.exit_code, 4);
  EXPECT_THAT(verified.out, HasSubstr(reason));
  const ProgramResult result = train("pipe", kAuto);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(reason));
  EXPECT_EQ(losses_of(run("pipe")), losses_of(run("whole")));
}

// Steps before the checkpoint are what the first ones after it are held
// against, in the same run folder or in another one.
TEST_F(Resume, ALossThatJumpsRightAfterwardsIsReported) {
  const std::string calm =
      testing::prepare_bytes(*folder_ / "calm_tokens", std::string(6000, 'a'));
  const std::string other = testing::prepare_bytes(
      *folder_ / "other_tokens", testing::made_up_text(6000));
  const std::string limit = "training.loss_spike_limit=2";
  ASSERT_EQ(
      train(
          "calm",
          {limit, "dataset.name=" + calm, "training.total_train_steps=30"})
          .exit_code,
      0);
  for (const std::string name : {"calm", "elsewhere"}) {
    const ProgramResult result = train(
        name,
        {limit,
         "dataset.name=" + other,
         "training.total_train_steps=31",
         "checkpoint.allow_changes=[\"dataset.name\"]",
         "checkpoint.load_path=" + checkpoint("calm", 30).string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(
        result.out,
        AllOf(HasSubstr("step 31: the loss"), HasSubstr("a spike")));
    fs::remove_all(checkpoint("calm", 31));
  }
}

TEST_F(Resume, AKeyThatMayChangeMustExist) {
  const ProgramResult result =
      train("unused", {"checkpoint.allow_changes=training.sed"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("training.seed"));
}

// Four steps of 8 sequences, then of 4: the 32nd sequence comes next, not the
// 16th.
TEST_F(Resume, AnotherBatchNeitherSkipsNorRepeatsASequence) {
  copy_run("smaller", 4);
  const ProgramResult result = train(
      "smaller",
      {kAuto[0], "training.micro_batch_size=4", "training.learning_rate=0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("changed: sequences per step: 8 when saved, 4 now"));
  const auto smaller = testing::read_metrics(run("smaller"));
  ASSERT_EQ(smaller.size(), size_t{kSteps});
  EXPECT_EQ(smaller.back().at("tokens"), (4 * 8 + 4 * 4) * 48);
  // Without updates, the losses of two half batches are that of the whole one.
  copy_run("larger", 4);
  ASSERT_EQ(
      train("larger", {kAuto[0], "training.learning_rate=0"}).exit_code, 0);
  const auto whole = losses_of(run("larger"));
  const auto halves = losses_of(run("smaller"));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(
        (halves[4 + 2 * i] + halves[5 + 2 * i]) / 2, whole[4 + i], 1e-4);
  }
}

TEST_F(Resume, ASecondRunInTheSameFolderIsRefused) {
  copy_run("shared", 4);
  // The run has no end of its own: it is ended below.
  testing::StartedProgram first(
      testing::program_path(),
      arguments("shared", {kAuto[0], "training.total_train_steps=100000000"}));
  const fs::path lock = run("shared") / "lock";
  ASSERT_TRUE(testing::eventually(
      [&] { return fs::exists(lock) && !testing::read_file(lock).empty(); }));
  const ProgramResult second = train("shared", kAuto);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(
      second.err,
      AllOf(
          HasSubstr("the run folder '" + run("shared").string()),
          HasSubstr(fmt::format("process {} on host", first.pid()))));
  ::kill(first.pid(), SIGKILL);
  first.wait();
}

TEST_F(Resume, ASaveDirThatCannotHoldOneCheckpointIsFoundAtStart) {
  const ProgramResult inside_a_file = train(
      "unwritable",
      {fmt::format(
          "checkpoint.save_dir={}/saved", (*folder_ / "run.json").string())});
  EXPECT_EQ(inside_a_file.exit_code, 6);
  EXPECT_THAT(inside_a_file.err, HasSubstr("checkpoint.save_dir"));
  EXPECT_FALSE(fs::exists(run("unwritable") / "metrics.jsonl"));
}

TEST_F(Resume, OldCheckpointsArePruned) {
  const ProgramResult result = train(
      "pruned",
      {"checkpoint.save_frequency=1",
       "checkpoint.keep_last=2",
       "checkpoint.keep_every=3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> left;
  for (const auto& entry :
       fs::directory_iterator(run("pruned") / "checkpoints"))
    left.push_back(entry.path().filename());
  EXPECT_THAT(
      left, ::testing::UnorderedElementsAre("3", "6", "7", "8", "latest"));
}

// Synchronous and asynchronous saves write the same.
TEST_F(Resume, AnAsynchronousSaveIsTheSynchronousOne) {
  const Arguments every = {
      "checkpoint.save_frequency=1", "checkpoint.async=false"};
  ASSERT_EQ(train("synchronous", every).exit_code, 0);
  for (const int step : {2, 4, 6, 8}) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(
          testing::tensor_bytes(checkpoint("synchronous", step) / file) ==
          testing::tensor_bytes(checkpoint("whole", step) / file))
          << step << " " << file;
  }
}

class RunSignals : public Resume {
 protected:
  // Waits until the run's metrics have that many steps.
  static bool eventually_has_steps(const std::string& name, size_t steps) {
    return testing::eventually(
        [&] { return testing::read_metrics(run(name)).size() >= steps; });
  }
};

// At a step of its own choosing, the run saves and ends with the shell's code.
TEST_F(RunSignals, TermSavesAndStopsAndTheRunGoesOnBitForBit) {
  for (const int nproc : {1, 2}) {
    const std::string name = fmt::format("term_{}", nproc);
    const Arguments split = {
        "--nproc",
        std::to_string(nproc),
        fmt::format("training.micro_batch_size={}", 8 / nproc),
        kAuto[0]};
    fs::remove_all(run(name));
    Arguments endless = split;
    endless.push_back("training.total_train_steps=100000000");
    testing::StartedProgram program(
        testing::program_path(), arguments(name, endless));
    ASSERT_TRUE(eventually_has_steps(name, 2));
    ::kill(program.pid(), SIGTERM);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
    EXPECT_THAT(result.out, HasSubstr("as asked"));
    const auto before = losses_of(run(name));
    // All steps that it reported are in the checkpoint.
    EXPECT_TRUE(fs::exists(
        checkpoint(name, static_cast<int>(before.size())) / "manifest.json"));
    Arguments rest = split;
    rest.push_back(
        fmt::format("training.total_train_steps={}", before.size() + 2));
    ASSERT_EQ(train(name, rest).exit_code, 0);
    const std::string undisturbed = name + "_undisturbed";
    ASSERT_EQ(train(undisturbed, rest).exit_code, 0);
    EXPECT_EQ(losses_of(run(name)), losses_of(run(undisturbed)));
  }
}

TEST_F(RunSignals, Usr1SavesAndGoesOn) {
  testing::StartedProgram program(
      testing::program_path(),
      arguments("usr1", {"training.total_train_steps=100000000"}));
  ASSERT_TRUE(eventually_has_steps("usr1", 1));
  ::kill(program.pid(), SIGUSR1);
  ASSERT_TRUE(testing::eventually(
      [&] { return fs::exists(run("usr1") / "checkpoints" / "latest"); }));
  const size_t steps = testing::read_metrics(run("usr1")).size();
  ASSERT_TRUE(eventually_has_steps("usr1", steps + 1));
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGINT);
}

TEST_F(RunSignals, AJobsEndIsNotWaitedFor) {
  const ProgramResult result = testing::run_program(
      arguments("slurm", {"training.total_train_steps=100000000"}),
      {{"SLURM_JOB_END_TIME", std::to_string(::time(nullptr) + 10)}});
  EXPECT_EQ(result.exit_code, 160);
  EXPECT_THAT(result.out, HasSubstr("because the job's time ends at 20"));
  const auto steps = testing::read_metrics(run("slurm")).size();
  EXPECT_TRUE(fs::exists(
      checkpoint("slurm", static_cast<int>(steps)) / "manifest.json"));
}

class NonFinite : public Resume {};

TEST_F(NonFinite, StepsAreSkippedAndCountedUpToALimit) {
  // The first update makes weights so large that every later loss overflows.
  const ProgramResult result = train(
      "skipped",
      {"training.learning_rate=1e30",
       "training.on_non_finite=skip",
       "training.max_skipped_steps=3"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("steps 2 to 4"), HasSubstr("3 steps in a row")));
  const auto metrics = testing::read_metrics(run("skipped"));
  ASSERT_EQ(metrics.size(), 4U);  // that of the last one that was skipped too
  EXPECT_FALSE(metrics[0].contains("skipped_steps"));
  EXPECT_EQ(metrics[3].at("skipped_steps"), 3);
}

}  // namespace
}  // namespace brigade
