#include "brigade/comm/sequential_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

namespace brigade {
namespace {

using ::testing::ElementsAre;

TEST(SequentialWorker, RunsTasksInOrderBesideTheCaller) {
  std::vector<int> order;
  std::promise<std::thread::id> thread;
  {
    SequentialWorker worker;
    for (int i = 0; i < 3; ++i)
      worker.submit([&order, i] { order.push_back(i); });
    worker.submit([&] { thread.set_value(std::this_thread::get_id()); });
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_NE(thread.get_future().get(), std::this_thread::get_id());
}

TEST(SequentialWorker, AHelpingThreadRunsQueuedTasksInOrder) {
  SequentialWorker worker;
  // A task holds the worker's thread, so that the rest is queued.
  std::promise<void> release;
  std::promise<void> held;
  worker.submit([&] {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  std::vector<int> order;
  std::atomic<bool> is_done = false;
  for (int i = 0; i < 3; ++i)
    worker.submit([&, i] {
      order.push_back(i);
      is_done = i == 2;
    });
  release.set_value();
  worker.help_until([&] { return is_done.load(); });
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST(SequentialWorker, NeverRunsTwoTasksAtOnce) {
  SequentialWorker worker;
  std::atomic<int> running = 0;
  std::atomic<int> finished = 0;
  std::atomic<bool> overlapped = false;
  for (int i = 0; i < 2000; ++i) {
    const int wanted = i + 1;
    worker.submit([&] {
      overlapped = overlapped || ++running > 1;
      --running;
      ++finished;
    });
    worker.help_until([&] { return finished >= wanted; });
    EXPECT_GE(finished, wanted);
  }
  EXPECT_FALSE(overlapped);
}

}  // namespace
}  // namespace brigade
