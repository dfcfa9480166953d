// A Store that a program brings itself, in place of c10d's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "brigade/base/error.h"
#include "brigade/comm/backend.h"
#include "brigade/comm/process_mesh.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// What all ranks of a test share.
struct SharedMap {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> values;
};

class MapStore : public Store {
 public:
  explicit MapStore(
      std::shared_ptr<SharedMap> map,
      std::string prefix = "",
      std::chrono::milliseconds timeout = testing::kNever)
      : map_(std::move(map)), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(map_->mutex);
    map_->values[prefix_ + key] = value;
    map_->changed.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(map_->mutex);
    if (!map_->changed.wait_for(lock, timeout_, [&] {
          return map_->values.count(prefix_ + key) > 0;
        }))
      throw CommError("nobody set " + prefix_ + key);
    return map_->values[prefix_ + key];
  }
  bool contains(const std::string& key) override {
    const std::lock_guard lock(map_->mutex);
    return map_->values.count(prefix_ + key) > 0;
  }
  StorePtr with_prefix(const std::string& prefix) override {
    return std::make_shared<MapStore>(map_, prefix_ + prefix + "/", timeout_);
  }

 private:
  std::shared_ptr<SharedMap> map_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
};

TEST(ForeignStore, IsWhereTheGroupsOfAMeshMeet) {
  const auto map = std::make_shared<SharedMap>();
  testing::run_ranks_with_store(4, [&](int rank, const StorePtr&) {
    const ProcessMesh mesh(
        ParallelDims{.dp = 2, .tp = 2},
        rank,
        std::make_shared<MapStore>(map),
        {.timeout = testing::kNever, .check_collectives = true});
    auto sum = torch::full({3}, static_cast<double>(rank));
    mesh.world()->all_reduce(sum)->wait();
    EXPECT_EQ(sum[0].item<double>(), 6.0);
    auto of_tp = torch::full({3}, static_cast<double>(rank));
    mesh.axis(Axis::kTp)->all_reduce(of_tp)->wait();
    EXPECT_EQ(of_tp[0].item<double>(), rank < 2 ? 1.0 : 5.0);
    mesh.world()->barrier();
  });
  EXPECT_FALSE(map->values.empty());
}

std::string error_of_join(const StorePtr& store) {
  return message_of<Error>([&] {
    make_communicator(
        store, 0, 2, {.name = "dp", .timeout = std::chrono::seconds(1)}, {});
  });
}

TEST(ForeignStore, ItsExceptionBecomesACommErrorNamingTheGroup) {
  const auto store = std::make_shared<MapStore>(
      std::make_shared<SharedMap>(), "", std::chrono::milliseconds(10));
  const std::string error = error_of_join(store);
  EXPECT_THAT(error, HasSubstr("rank 0 of 2 could not join group 'dp'"));
  EXPECT_THAT(error, HasSubstr("nobody set main/"));
}

TEST(ForeignStore, AnswersOfAnotherSizeAreACommErrorAndNoAbort) {
  // A store that a larger group used before.
  class Stale : public MapStore {
   public:
    using MapStore::MapStore;
    std::string get(const std::string&) override { return "1:a1:b1:c"; }
    bool contains(const std::string&) override { return true; }
    StorePtr with_prefix(const std::string&) override {
      return std::make_shared<Stale>(std::make_shared<SharedMap>());
    }
  };
  EXPECT_THAT(
      [&] {
        make_communicator(
            std::make_shared<Stale>(std::make_shared<SharedMap>()),
            1,
            2,
            {.name = "dp", .timeout = std::chrono::seconds(1)},
            {});
      },
      ThrowsMessage<CommError>(HasSubstr("of 3 ranks, but the group has 2")));
}

TEST(ForeignStore, NoneAtAllIsRefusedWhereAGroupHasSeveralRanks) {
  EXPECT_THAT(
      [] { make_communicator(nullptr, 0, 2, {.name = "dp"}, {}); },
      ThrowsMessage<UsageError>(HasSubstr("was given no store")));
}

}  // namespace
}  // namespace brigade
