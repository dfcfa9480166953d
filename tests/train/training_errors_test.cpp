// What `brigade train` says and leaves behind when something is wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "brigade/run/checkpoint_folder.h"
#include "tests/support/free_port.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::ProgramResult;

class TrainingErrors : public ::testing::Test {
 protected:
  TrainingErrors() {
    dataset_ =
        testing::prepare_bytes(folder_ / "tokens", testing::made_up_text(3000));
    auto config = testing::tiny_run(dataset_);
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 3},
        {"learning_rate", 5e-3}};
    config["logging"]["run_dir"] = run_.string();
    testing::write_file(folder_ / "run.json", config.dump());
  }
  Arguments arguments(const Arguments& more) const {
    Arguments all = {"train", "--config", (folder_ / "run.json").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult train(const Arguments& more) const {
    return testing::run_program(arguments(more));
  }

  testing::RunsFolder folder_;
  fs::path run_ = folder_ / "run";
  std::string dataset_;
};

TEST_F(TrainingErrors, ARunIsNotReplacedUnlessToldTo) {
  ASSERT_EQ(train({}).exit_code, 0);
  const std::string before = testing::read_file(run_ / "metrics.jsonl");
  const ProgramResult again = train({"training.seed=7"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(
      again.err, AllOf(HasSubstr(run_.string()), HasSubstr("--overwrite")));
  EXPECT_EQ(testing::read_file(run_ / "metrics.jsonl"), before);

  EXPECT_THAT(again.err, HasSubstr("continue it with checkpoint.load_path"));
  // A run without a checkpoint cannot be continued.
  fs::remove_all(run_ / "checkpoints");
  const ProgramResult interrupted = train({});
  EXPECT_EQ(interrupted.exit_code, 2);
  EXPECT_THAT(
      interrupted.err,
      AllOf(HasSubstr("no checkpoint to continue"), HasSubstr("--overwrite")));

  EXPECT_EQ(train({"--overwrite", "training.seed=7"}).exit_code, 0);
  EXPECT_EQ(testing::losses_of(run_).size(), 3U);
  EXPECT_NE(testing::read_file(run_ / "metrics.jsonl"), before);
}

TEST_F(TrainingErrors, ARunFolderThatCannotBeMadeIsAStorageError) {
  // Inside a file, which stops root too.
  const ProgramResult result = train(
      {fmt::format("logging.run_dir={}/run", (folder_ / "run.json").string())});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_THAT(result.err, HasSubstr((folder_ / "run.json").string()));
}

TEST_F(TrainingErrors, ATokenOutsideTheVocabularyIsNamedWithFileAndOffset) {
  constexpr int64_t kToken = 100;
  const std::string path = dataset_ + ".bin";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kToken * 2);
  file.write("\x10\x27", 2);  // 10000
  file.close();
  const ProgramResult result = train({"--nproc", "2"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr(path), HasSubstr("byte 200"), HasSubstr("10000")));
}

// The dataset's tokenizer may have more tokens than the model has rows; refused
// is a token that the text has.
TEST_F(TrainingErrors, ATokenThatTheModelHasNoRowForIsADataError) {
  const ProgramResult result = train({"model.config.vocab_size=257"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr(dataset_ + ".bin"),
          HasSubstr("token id 257"),
          HasSubstr("vocabulary of 257")));
  EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl"));
}

TEST_F(TrainingErrors, ATextShorterThanOneWindowIsADataError) {
  const std::string small =
      testing::prepare_bytes(folder_ / "small", testing::made_up_text(30));
  const ProgramResult result = train({"dataset.name=" + small});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr(small), HasSubstr("49")));
}

TEST_F(TrainingErrors, ALossThatIsNotANumberNamesRankParameterAndStep) {
  const ProgramResult result = train({"training.learning_rate=1e30"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("step 2"),
          HasSubstr("rank 0"),
          HasSubstr("the gradient of 'model.")));
  // What was computed from the weights of before is all there is.
  EXPECT_EQ(testing::losses_of(run_).size(), 1U);
  // And why it ended.
  const std::string events = testing::read_file(run_ / "events.jsonl");
  const size_t last = events.rfind('\n', events.size() - 2);
  EXPECT_THAT(
      events.substr(last + 1),
      AllOf(HasSubstr(R"("event":"failed")"), HasSubstr("the gradient of")));
}

TEST_F(TrainingErrors, RanksThatDisagreeOnTheConfigAllSaySo) {
  const testing::FreePort free;
  const std::string port = std::to_string(free.number());
  const auto start = [&](int rank, const std::string& override_text) {
    const auto number = std::to_string(rank);
    return std::make_unique<testing::StartedProgram>(
        testing::program_path(),
        arguments({override_text}),
        std::map<std::string, std::string>{
            {"RANK", number},
            {"LOCAL_RANK", number},
            {"WORLD_SIZE", "2"},
            {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", port}});
  };
  const auto first = start(0, "training.seed=1");
  const auto second = start(1, "training.seed=2");
  for (testing::StartedProgram* rank : {first.get(), second.get()}) {
    const ProgramResult result = rank->wait();
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr("the config differs among the ranks: training.seed is 1"),
            HasSubstr("and 2 on rank 1")));
  }
}

// A disk that holds one checkpoint of this model (0.45 MB) and not two.
class FullDisk : public TrainingErrors {
 protected:
  FullDisk() : disk_(folder_ / "disk") {
    fs::create_directory(disk_);
    is_mounted_ = ::mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=800k") == 0;
  }
  ~FullDisk() override {
    if (is_mounted_)
      ::umount2(disk_.c_str(), MNT_DETACH);
  }

  fs::path disk_;
  bool is_mounted_ = false;
};

TEST_F(FullDisk, IsFoundAtTheStartWhereNoCheckpointFits) {
  if (!is_mounted_)
    GTEST_SKIP() << "mounting a small tmpfs takes root: " << strerror(errno);
  for (const std::string nproc : {"1", "2"}) {
    // Weights and moments of 2 MB.
    const ProgramResult result = train(
        {"--nproc",
         nproc,
         "checkpoint.save_dir=" + (disk_ / "saved").string(),
         "model.config.hidden_size=96"});
    EXPECT_EQ(result.exit_code, 6);
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr("a checkpoint of this run has"),
            HasSubstr("checkpoint.save_dir '" + (disk_ / "saved").string()),
            HasSubstr("free some space")));
    EXPECT_FALSE(fs::exists(run_ / "metrics.jsonl"));
  }
}

TEST_F(FullDisk, LeavesThePreviousCheckpointUnharmed) {
  if (!is_mounted_)
    GTEST_SKIP() << "mounting a small tmpfs takes root: " << strerror(errno);
  const std::string save_dir = (disk_ / "saved").string();
  const Arguments more = {
      "--nproc",
      "2",
      "checkpoint.save_dir=" + save_dir,
      "checkpoint.save_frequency=1"};
  const ProgramResult result = train(more);
  EXPECT_EQ(result.exit_code, 6);
  // The second was reported, the run went on, and the last one counts.
  EXPECT_THAT(result.out, HasSubstr("could NOT save " + save_dir + "/2"));
  EXPECT_THAT(
      result.err, AllOf(HasSubstr(save_dir + "/3"), HasSubstr("rank ")));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(save_dir))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("1", "latest"));

  const ProgramResult text = testing::run_program(
      {"generate", "--checkpoint", save_dir + "/1", "--prompt", "ba"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
}

// Its run folder alone, which grows by half a kilobyte per step.
TEST_F(FullDisk, EndsTheRunAfterASaveWhereItHoldsMetricsAlone) {
  if (!is_mounted_)
    GTEST_SKIP() << "mounting a small tmpfs takes root: " << strerror(errno);
  const fs::path save_dir = folder_ / "saved";
  ASSERT_EQ(
      ::mount(
          nullptr, disk_.c_str(), nullptr, MS_REMOUNT, "size=48k,nr_inodes=64"),
      0);
  // Two stages: rank 0 has the first, and the rank of the last one reports.
  const auto on_disk = [&](const Arguments& more) {
    Arguments all = {
        "--nproc",
        "2",
        "distributed.pp_size=2",
        "distributed.dp_size=1",
        "checkpoint.save_dir=" + save_dir.string(),
        "logging.run_dir=" + (disk_ / "run").string()};
    all.insert(all.end(), more.begin(), more.end());
    return train(all);
  };
  const ProgramResult result = on_disk({"training.total_train_steps=100000"});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("metrics.jsonl': No space left on device"),
          HasSubstr("the run stopped after step")));
  const auto saved = list_checkpoints(save_dir);
  ASSERT_EQ(saved.size(), 1U);
  EXPECT_THAT(
      result.err,
      HasSubstr(fmt::format("the run stopped after step {}, ", saved[0].step)));
  // A step or two after the last that is reported.
  const auto reported =
      static_cast<int64_t>(testing::losses_of(disk_ / "run").size());
  EXPECT_GT(reported, 10);
  EXPECT_LE(saved[0].step - reported, 3);

  ASSERT_EQ(
      ::mount(
          nullptr, disk_.c_str(), nullptr, MS_REMOUNT, "size=1m,nr_inodes=64"),
      0);
  const ProgramResult rest = on_disk(
      {"checkpoint.load_path=auto",
       fmt::format("training.total_train_steps={}", saved[0].step + 5)});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(
      testing::read_metrics(disk_ / "run").back().at("step"),
      saved[0].step + 5);
}

}  // namespace
}  // namespace brigade
