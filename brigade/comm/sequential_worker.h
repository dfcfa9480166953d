// One thread that runs tasks in the order in which they were given.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace brigade {

class SequentialWorker {
 public:
  SequentialWorker();
  // Runs what is queued, then joins.
  ~SequentialWorker();
  SequentialWorker(const SequentialWorker&) = delete;
  SequentialWorker& operator=(const SequentialWorker&) = delete;

  // The task must not throw.
  void submit(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest is made
};

}  // namespace brigade
