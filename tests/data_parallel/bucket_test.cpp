// A bucket's states, and who may wait for it.
#include "brigade/data_parallel/bucket_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;

// A reduction that ends when the test calls end().
class HeldWork : public Work {
 public:
  void wait() override {
    std::unique_lock lock(mutex_);
    is_waited_for_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_ended_; });
    if (fails_)
      throw CommError("the peer is gone");
  }
  bool is_completed() override {
    const std::lock_guard lock(mutex_);
    return is_ended_;
  }
  int64_t finished_ns() override { return 7; }

  void end() {
    const std::lock_guard lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
  void fail() {
    fails_ = true;
    end();
  }
  // Blocks until a thread is inside wait().
  void await_waiter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_waited_for_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_waited_for_ = false;
  bool is_ended_ = false;
  bool fails_ = false;
};

// Two parameters.
Bucket make_bucket() {
  BucketView view;
  view.index = 3;
  view.buckets = 5;
  view.main_grad = torch::zeros({64});
  view.owned = view.main_grad;
  view.names = {"first", "last"};
  return Bucket(view);
}

BucketHook hook_of(const std::shared_ptr<HeldWork>& work) {
  return [work](BucketView&, Communicator&) { return work; };
}

TEST(Bucket, IsFullOnceAllItsParametersAreReady) {
  Bucket bucket = make_bucket();
  EXPECT_EQ(bucket.state(), BucketState::kFilling);
  bucket.mark_ready();
  EXPECT_EQ(bucket.state(), BucketState::kFilling);
  bucket.mark_ready();
  EXPECT_EQ(bucket.state(), BucketState::kFull);
  EXPECT_GT(bucket.timing().ready_ns, 0);
}

TEST(Bucket, IsReducedOnceItsWorkWasWaitedFor) {
  const auto world = make_world_of_one();
  const auto work = std::make_shared<HeldWork>();
  Bucket bucket = make_bucket();
  bucket.mark_ready();
  bucket.mark_ready();
  bucket.launch(hook_of(work), *world);
  EXPECT_EQ(bucket.state(), BucketState::kReducing);
  EXPECT_FALSE(bucket.is_reduced());
  work->end();
  // Only wait() puts the sum in place.
  EXPECT_TRUE(bucket.is_reduced());
  EXPECT_EQ(bucket.state(), BucketState::kReducing);
  bucket.wait();
  EXPECT_EQ(bucket.state(), BucketState::kReduced);
  EXPECT_EQ(bucket.timing().finished_ns, 7);
  EXPECT_EQ(bucket.timing().bytes, 64 * 4);
  bucket.wait();  // nothing is left to wait for
  bucket.reset();
  EXPECT_EQ(bucket.state(), BucketState::kFilling);
}

TEST(Bucket, CountsTheBytesThatItsHookSays) {
  const auto world = make_world_of_one();
  Bucket bucket = make_bucket();
  const auto bytes_with = [&](std::optional<int64_t> said) {
    bucket.mark_ready();
    bucket.mark_ready();
    const BucketHook hook = [&](BucketView& view, Communicator&) {
      if (said)
        view.reduced_bytes = said;
      return make_completed_work();
    };
    bucket.launch(hook, *world);
    bucket.wait();
    bucket.reset();
    return bucket.timing().bytes;
  };
  EXPECT_EQ(bytes_with(5), 5);
  EXPECT_EQ(bytes_with({}), 64 * 4);
}

TEST(Bucket, OneThreadFillsItAndAnotherWaits) {
  const auto world = make_world_of_one();
  const auto work = std::make_shared<HeldWork>();
  Bucket bucket = make_bucket();
  std::thread backward([&] {
    bucket.mark_ready();
    bucket.mark_ready();
    bucket.launch(hook_of(work), *world);
  });
  backward.join();
  std::thread releases([&] {
    work->await_waiter();
    work->end();
  });
  bucket.wait();
  releases.join();
  EXPECT_EQ(bucket.state(), BucketState::kReduced);
}

TEST(Bucket, IsLaunchedAsIsOnAShadowingRank) {
  const auto world = make_world_of_one();
  const auto work = std::make_shared<HeldWork>();
  work->end();
  Bucket bucket = make_bucket();
  bucket.mark_ready();
  bucket.launch_as_is(hook_of(work), *world);
  bucket.wait();
  bucket.reset();
  // It counts ready parameters from zero again.
  bucket.mark_ready();
  EXPECT_EQ(bucket.state(), BucketState::kFilling);
}

TEST(Bucket, ErrorsNameItsPlaceAndItsParameters) {
  const auto world = make_world_of_one();
  const auto work = std::make_shared<HeldWork>();
  work->fail();
  Bucket bucket = make_bucket();
  bucket.launch_as_is(hook_of(work), *world);
  EXPECT_THAT(
      message_of<Error>([&] { bucket.wait(); }),
      HasSubstr("bucket 3 of 5 (first ... last, 256 bytes): the peer is gone"));
  // It is given up and can be used again.
  EXPECT_EQ(bucket.state(), BucketState::kReducing);
  bucket.abandon();
  EXPECT_EQ(bucket.state(), BucketState::kReduced);
  bucket.reset();
  EXPECT_THAT(
      message_of<Error>([&] {
        bucket.launch_as_is(
            [](BucketView&, Communicator&) -> WorkPtr {
              throw std::runtime_error("out of ideas");
            },
            *world);
      }),
      HasSubstr("the hook of bucket 3 of 5"));
  bucket.reset();
  EXPECT_THAT(
      message_of<StorageError>([&] {
        bucket.launch_as_is(
            [](BucketView&, Communicator&) -> WorkPtr {
              throw StorageError("the disk is full");
            },
            *world);
      }),
      HasSubstr("bucket 3 of 5"));
}

}  // namespace
}  // namespace brigade
