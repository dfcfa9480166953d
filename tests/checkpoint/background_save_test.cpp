#include "brigade/checkpoint/background_save.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/verify.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// One row of `whole`, which is the same on every rank.
CheckpointToSave row_of(const torch::Tensor& whole, int rank, int ranks) {
  CheckpointToSave checkpoint;
  checkpoint.manifest.step = 3;
  checkpoint.manifest.run = "r";
  checkpoint.manifest.dtype = "float32";
  checkpoint.manifest.writers = ranks;
  checkpoint.weights.push_back(
      {.name = "model.w",
       .tensor = whole.narrow(0, rank, 1),
       .slice = {0, rank, rank + 1}});
  return checkpoint;
}

SaveRanks ranks_of(int rank, int ranks, const StorePtr& store) {
  SaveRanks result;
  result.rank = result.writer = rank;
  result.world_size = ranks;
  result.store = ranks == 1 ? nullptr : store;
  result.save_key = "save";
  return result;
}

// Refuses requests for keys that end so.
class RefusingStore : public Store {
 public:
  RefusingStore(StorePtr store, std::string end)
      : store_(std::move(store)), end_(std::move(end)) {}

  void set(const std::string& key, const std::string& value) override {
    refuse(key);
    store_->set(key, value);
  }
  std::string get(const std::string& key) override { return store_->get(key); }
  bool contains(const std::string& key) override {
    refuse(key);
    return store_->contains(key);
  }
  StorePtr with_prefix(const std::string& prefix) override {
    return std::make_shared<RefusingStore>(store_->with_prefix(prefix), end_);
  }

 private:
  void refuse(const std::string& key) const {
    if (key.ends_with(end_))
      throw CommError("no space for " + end_);
  }

  StorePtr store_;
  std::string end_;
};

class BackgroundSaveTest : public ::testing::TestWithParam<int> {
 protected:
  BackgroundSaveTest() { write_bytes(folder_ / "source", "x"); }
  TemporaryFolder folder_;
};

// The save keeps the values from before the training that goes on.
TEST_P(BackgroundSaveTest, WritesWhatTheTensorsHeldWhenItBegan) {
  const int ranks = GetParam();
  const fs::path directory = folder_ / "3";
  const torch::Tensor whole =
      torch::arange(ranks * 8).view({ranks, 8}).to(torch::kFloat);
  testing::run_ranks_with_store(ranks, [&](int rank, const StorePtr& store) {
    torch::Tensor mine = whole.clone();
    BackgroundSave save;
    save.start(
        directory, row_of(mine, rank, ranks), ranks_of(rank, ranks, store));
    mine.zero_();
    EXPECT_FALSE(save.is_idle());
    while (true) {
      if (const auto outcome = save.poll()) {
        EXPECT_EQ(outcome->failure, "");
        break;
      }
    }
    EXPECT_TRUE(save.is_idle());
  });
  EXPECT_EQ(find_reason_to_reject(directory, VerifyLevel::kFull), "");
  const Checkpoint checkpoint(directory);
  EXPECT_EQ(checkpoint.manifest().writers, ranks);
  EXPECT_TRUE(torch::equal(checkpoint.read_whole("model.w"), whole));
}

using BackgroundSaveRanks = BackgroundSaveTest;

INSTANTIATE_TEST_SUITE_P(Ranks, BackgroundSaveTest, ::testing::Values(1, 2, 3));

TEST_F(BackgroundSaveRanks, WaitBringsAllRanksTheSameOutcome) {
  // Only one rank has something to write.
  testing::run_ranks(2, [&](const CommunicatorPtr& world) {
    BackgroundSave save;
    EXPECT_FALSE(save.wait(*world).has_value());
    const torch::Tensor whole = torch::ones({2, 8});
    const bool writes = world->rank() == 0;
    if (writes)
      save.start(folder_ / "3", row_of(whole, 0, 1), ranks_of(0, 1, nullptr));
    const auto outcome = save.wait(*world);
    EXPECT_EQ(outcome.has_value(), writes);
    EXPECT_TRUE(!writes || fs::exists(folder_ / "3" / "manifest.json"));
  });
}

// Every rank reports the cause and its rank, not "another rank failed".
TEST_F(BackgroundSaveRanks, EveryRankLearnsWhichOneCouldNotWriteAndWhy) {
  testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    const fs::path directory = folder_ / "4";
    CheckpointToSave checkpoint = row_of(torch::ones({2, 8}), rank, 2);
    // Rank 0 makes 4.tmp with a folder where rank 1 will want its file.
    if (rank == 0)
      checkpoint.attachments[folder_ / "source"] =
          "model-rank-1.safetensors/taken";
    EXPECT_THAT(
        [&] {
          save_checkpoint(directory, checkpoint, ranks_of(rank, 2, store));
        },
        ThrowsMessage<StorageError>(AllOf(
            HasSubstr("rank 1: "),
            HasSubstr("model-rank-1.safetensors"),
            HasSubstr("no regular file"))));
    EXPECT_FALSE(fs::exists(directory));
  });
  EXPECT_FALSE(fs::exists(folder_ / "4.tmp"));
}

// A rank and a key that it cannot set or look up.
class UntoldFailureTest
    : public ::testing::TestWithParam<std::pair<int, const char*>> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(UntoldFailureTest, IsEveryRanksOutcomeAndTheNextSaveWorks) {
  const auto& [failing, key] = GetParam();
  const StorePtr store = make_in_process_store(testing::kNever);
  testing::run_ranks(3, [&](const CommunicatorPtr& world) {
    const int rank = world->rank();
    const torch::Tensor whole = torch::ones({3, 8});
    BackgroundSave save;
    SaveRanks ranks = ranks_of(rank, 3, store);
    if (rank == failing)
      ranks.store = std::make_shared<RefusingStore>(store, key);
    save.start(folder_ / "3", row_of(whole, rank, 3), ranks);
    if (rank == failing) {
      while (!save.has_untold_failure())
        std::this_thread::yield();
      EXPECT_FALSE(save.poll().has_value());
    }
    auto outcome = save.wait(*world);
    EXPECT_FALSE(save.has_untold_failure());
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(
        outcome->failure,
        fmt::format("rank {}: no space for {}", failing, key));

    ranks = ranks_of(rank, 3, store);
    ranks.save_key = "next";
    save.start(folder_ / "4", row_of(whole, rank, 3), ranks);
    outcome = save.wait(*world);
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->failure, "");
  });
  EXPECT_EQ(find_reason_to_reject(folder_ / "4", VerifyLevel::kFull), "");
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndKeys,
    UntoldFailureTest,
    ::testing::Values(
        std::pair(0, "begin"),
        std::pair(1, "begin"),
        std::pair(2, "part-2"),
        std::pair(0, "end")));

TEST_F(BackgroundSaveRanks, IsGivenUpWhereOtherRanksDoNotCome) {
  // Rank 0 waits for a second writer that never saves; its end is not in vain.
  testing::run_ranks_with_store(1, [&](int, const StorePtr& store) {
    BackgroundSave save;
    save.start(
        folder_ / "5",
        row_of(torch::ones({2, 8}), 0, 2),
        ranks_of(0, 2, store));
    EXPECT_FALSE(save.poll().has_value());
  });
  EXPECT_FALSE(fs::exists(folder_ / "5"));
  EXPECT_FALSE(fs::exists(folder_ / "5.tmp"));
}

}  // namespace
}  // namespace brigade
