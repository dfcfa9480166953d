#include "brigade/run/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

TEST(StepsToRemove, AreThoseThatNothingKeeps) {
  const std::vector<int64_t> steps = {10, 20, 30, 40, 50};
  EXPECT_THAT(steps_to_remove(steps, {}), IsEmpty());
  EXPECT_THAT(
      steps_to_remove(steps, {.keep_last = 2}), ElementsAre(10, 20, 30));
  EXPECT_THAT(
      steps_to_remove(steps, {.keep_last = 1, .keep_every = 20}),
      ElementsAre(10, 30));
  EXPECT_THAT(steps_to_remove(steps, {.keep_last = 5}), IsEmpty());
  EXPECT_THAT(steps_to_remove(steps, {.keep_every = 20}), IsEmpty());
}

TEST(StepsToRemove, NeverHaveTheLastOne) {
  for (int64_t keep_last = 1; keep_last < 4; ++keep_last) {
    EXPECT_THAT(
        steps_to_remove({1, 2, 3}, {.keep_last = keep_last}),
        ::testing::Not(::testing::Contains(3)));
    EXPECT_THAT(steps_to_remove({3}, {.keep_last = keep_last}), IsEmpty());
  }
}

class CheckpointFolder : public ::testing::Test {
 protected:
  void make(const std::string& name) {
    fs::create_directory(folder_ / name);
    write_bytes(folder_ / name / "file", name);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    return names;
  }
  TemporaryFolder folder_;
};

TEST_F(CheckpointFolder, IsWhereTheRunsConfigSaysThatItSaves) {
  const fs::path run = folder_ / "run";
  const fs::path saved = folder_ / "saved";
  fs::create_directories(run);
  write_bytes(
      run / "config.json",
      "{\"checkpoint\": {\"save_dir\": \"" + saved.string() + "\"}}");
  EXPECT_EQ(folder_of_checkpoints(run), run);  // it has saved nothing yet
  fs::create_directories(saved / "7");
  write_bytes(saved / "7" / "manifest.json", "{}");
  EXPECT_EQ(folder_of_checkpoints(run), saved);
  EXPECT_EQ(find_checkpoint(run), saved / "7");
  fs::create_directories(run / "checkpoints");
  EXPECT_EQ(folder_of_checkpoints(run), run / "checkpoints");
}

TEST_F(CheckpointFolder, ListsNumbersAscending) {
  for (const char* name :
       {"9", "10", "11.tmp", "x", "-3", "7.old", "latest", "003", "00"})
    make(name);
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(folder_.path()))
    steps.push_back(entry.step);
  EXPECT_THAT(steps, ElementsAre(9, 10));
  EXPECT_THAT(list_checkpoints(folder_ / "absent"), IsEmpty());
}

TEST_F(CheckpointFolder, KnowsThatItHasHeldOneWhenNoneIsLeft) {
  EXPECT_FALSE(has_held_checkpoints(folder_.path()));
  note_latest(folder_.path(), 5);
  EXPECT_TRUE(has_held_checkpoints(folder_.path()));
}

TEST_F(CheckpointFolder, CleansUpWhatKilledSavesLeftAndNothingElse) {
  for (const char* name :
       {"1",
        "2.tmp",
        "3.removed.tmp",
        "4.old",
        "5",
        "5.old",
        "latest.tmp-77",
        "mine.tmp"})
    make(name);
  EXPECT_THAT(
      clean_up_saves(folder_.path()),
      ElementsAre(
          HasSubstr("removed 2.tmp,"),
          HasSubstr("removed 3.removed.tmp,"),
          HasSubstr("removed latest.tmp-77,")));
  EXPECT_THAT(names(), UnorderedElementsAre("1", "4", "5", "mine.tmp"));
}

TEST_F(CheckpointFolder, PrunesUpToTheStepThatIsKnownToBeValid) {
  for (const char* name : {"1", "2", "3", "4", "9"})
    make(name);
  EXPECT_THAT(
      prune_checkpoints(folder_.path(), {.keep_last = 2}, /*newest=*/4),
      ElementsAre(1, 2));
  // 9 is of unknown value: it neither counts nor goes.
  EXPECT_THAT(names(), UnorderedElementsAre("3", "4", "9"));
}

TEST_F(CheckpointFolder, WhatIsNoCheckpointDoesNotKeepOthersFromBeingPruned) {
  for (const char* name : {"0003", "4", "5"})
    make(name);
  EXPECT_THAT(
      prune_checkpoints(folder_.path(), {.keep_last = 1}, 5), ElementsAre(4));
  EXPECT_THAT(names(), UnorderedElementsAre("0003", "5"));
}

TEST_F(CheckpointFolder, OneThatCannotBeRemovedDoesNotKeepOthers) {
  for (const char* name : {"1", "2", "3", "4"})
    make(name);
  // Nothing can be renamed to a folder that is not empty.
  for (const char* name : {"1.removed.tmp", "2.removed.tmp"})
    make(name);
  EXPECT_THAT(
      [&] { prune_checkpoints(folder_.path(), {.keep_last = 1}, 4); },
      ThrowsMessage<StorageError>(
          AllOf(HasSubstr("/1'"), HasSubstr("/2'"), Not(HasSubstr("/3'")))));
  EXPECT_THAT(
      names(),
      UnorderedElementsAre("1", "2", "4", "1.removed.tmp", "2.removed.tmp"));
}

}  // namespace
}  // namespace brigade
