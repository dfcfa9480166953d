// One thread that runs tasks in the order of submission, one at a time; an
// operation of several steps is such a task. A thread that waits for one of
// them may run them in its place.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "brigade/comm/communicator.h"

namespace brigade {

class GroupFailures;  // comm/start/post_mortem.h

class SequentialWorker {
 public:
  SequentialWorker();
  // Runs what is queued, then joins.
  ~SequentialWorker();
  SequentialWorker(const SequentialWorker&) = delete;
  SequentialWorker& operator=(const SequentialWorker&) = delete;

  // The task must not throw.
  void submit(std::function<void()> task);

  // Runs queued tasks on the calling thread, in their order and never beside
  // another, until `is_done` or none is left. Spares the switch to a thread
  // and back, which costs more than a short message. Not from within a task.
  void help_until(const std::function<bool()>& is_done);

  // Whether the calling thread is some worker's own.
  static bool is_own_thread();

 private:
  void run();
  // Runs the first task; the lock is released meanwhile.
  void run_first(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_running_ = false;  // a task, on some thread
  bool stopping_ = false;
  std::thread thread_;  // last: starts when the rest is made
};

// See launch_task().
struct TaskOptions {
  // What an error of the task becomes; null: it stays as it is.
  std::shared_ptr<const GroupFailures> failures;
  // The waiting thread carries out what is queued, instead of sleeping until
  // the worker has. The worker itself is not kept alive by the Work.
  bool waiting_helps = false;
};

// Queues `task` on the worker, behind what is queued there already. It returns
// Work::reduced_bytes(); what it throws is thrown by every wait().
WorkPtr launch_task(
    const std::shared_ptr<SequentialWorker>& worker,
    const CollectiveRecord& record,
    std::function<std::optional<int64_t>()> task,
    const TaskOptions& options = {});

}  // namespace brigade
