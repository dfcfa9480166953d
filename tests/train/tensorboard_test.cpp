// What TensorBoard shows of a run that was continued: its reader's rules, for
// the files of one folder, are written down again here. Against TensorBoard
// itself: tests/ecosystem.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;

// The fields of a protocol buffer: numbers of varints and contents of bytes.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;
  std::string bytes;
};

std::vector<Field> fields_of(const std::string& message) {
  std::vector<Field> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= uint64_t{byte & 127U} << shift;
      if (byte < 128)
        return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    Field field{.number = key >> 3};
    const uint64_t type = key & 7;
    if (type == 0) {
      field.value = varint();
    } else {
      const size_t size = type == 1 ? 8 : type == 5 ? 4 : varint();
      field.bytes = message.substr(at, size);
      at += size;
    }
    fields.push_back(field);
  }
  return fields;
}

// The steps of the folder's event files, in the order of their names: a
// SessionLog START drops those from its own step on. A record that was cut off
// ends its file.
std::vector<uint64_t> steps_shown(const fs::path& run) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents."))
      files.insert(entry.path());
  }
  std::vector<uint64_t> steps;
  for (const fs::path& file : files) {
    const std::string bytes = testing::read_file(file);
    for (size_t at = 0; at + 12 <= bytes.size();) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      if (at + 16 + length > bytes.size())
        break;
      uint64_t step = 0;
      for (const Field& field : fields_of(bytes.substr(at + 12, length))) {
        if (field.number == 2)
          step = field.value;
        if (field.number == 5)  // summary
          steps.push_back(step);
        if (field.number == 7 && fields_of(field.bytes).at(0).value == 1)
          std::erase_if(steps, [&](uint64_t other) { return other >= step; });
      }
      at += 16 + length;
    }
  }
  return steps;
}

class TensorBoard : public ::testing::Test {
 protected:
  TensorBoard() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48}, {"total_train_steps", 6}, {"learning_rate", 5e-3}};
    config["logging"] = {{"tensorboard", true}, {"run_dir", run().string()}};
    config["checkpoint"] = {{"save_frequency", 2}};
    testing::write_file(folder_ / "run.json", config.dump());
    train({});
  }
  fs::path run() const { return folder_ / "run"; }
  void train(const Arguments& more) const {
    Arguments arguments = {
        "train", "--config", (folder_ / "run.json").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = testing::run_program(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  void expect_each_step_once(uint64_t last) const {
    std::vector<uint64_t> expected;
    for (uint64_t step = 1; step <= last; ++step)
      expected.push_back(step);
    EXPECT_EQ(steps_shown(run()), expected);
  }

  testing::RunsFolder folder_;
};

TEST_F(TensorBoard, ShowsEachStepOnceAfterAnEarlierCheckpointIsContinued) {
  expect_each_step_once(6);
  train(
      {"checkpoint.load_path=" + (run() / "checkpoints" / "4").string(),
       "training.total_train_steps=8"});
  expect_each_step_once(8);
  // And again, from before that.
  train(
      {"checkpoint.load_path=" + (run() / "checkpoints" / "2").string(),
       "training.total_train_steps=5"});
  expect_each_step_once(5);
}

// What a kill leaves, which an automatic restart continues the same way: steps
// after the last checkpoint, and half a record.
TEST_F(TensorBoard, ShowsEachStepOnceAfterAKill) {
  fs::remove_all(run() / "checkpoints" / "6");
  for (const auto& entry : fs::directory_iterator(run())) {
    if (entry.path().filename().string().starts_with("events.out.tfevents."))
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 20);
  }
  EXPECT_EQ(steps_shown(run()).size(), 5U);
  train({"checkpoint.load_path=auto", "training.total_train_steps=7"});
  expect_each_step_once(7);
}

TEST_F(TensorBoard, ShowsNothingOfARunThatIsOverwritten) {
  train({"--overwrite", "training.total_train_steps=3"});
  expect_each_step_once(3);
  testing::write_file(run() / "metrics.csv", "of the run before");
  train({"--overwrite", "logging.tensorboard=false"});
  EXPECT_TRUE(steps_shown(run()).empty());
  EXPECT_FALSE(fs::exists(run() / "metrics.csv"));
}

}  // namespace
}  // namespace brigade
