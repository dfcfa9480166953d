// One thread that runs tasks in the order of submission, one at a time, such as
// operations of several steps. A thread that waits for one of them may run
// tasks in the worker's place.
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
  // Runs the queued tasks, then joins.
  ~SequentialWorker();
  SequentialWorker(const SequentialWorker&) = delete;
  SequentialWorker& operator=(const SequentialWorker&) = delete;

  // The task must not throw.
  void submit(std::function<void()> task);

  // Runs queued tasks on the calling thread, in their order and never beside
  // another, until `is_done` or none is left. Saves the switch to a thread and
  // back, which costs more than a short message. Must not be called from a
  // task.
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
  // Turns an error of the task into one of the group; null: it stays as it is.
  std::shared_ptr<const GroupFailures> failures;
  // The waiting thread runs queued tasks, instead of sleeping until the worker
  // has. The Work does not keep the worker alive.
  bool waiting_helps = false;
};

// Queues `task` on the worker, behind the tasks there. `task` returns
// Work::reduced_bytes(); every wait() throws what it throws.
WorkPtr launch_task(
    const std::shared_ptr<SequentialWorker>& worker,
    const CollectiveRecord& record,
    std::function<std::optional<int64_t>()> task,
    const TaskOptions& options = {});

}  // namespace brigade
