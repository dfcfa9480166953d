// Works over messages between ranks; for the files of comm/ only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "brigade/comm/communicator.h"
#include "brigade/comm/group_messages.h"
#include "brigade/comm/post_mortem.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {

// A message between two ranks. The backend tells its end to a wait() alone:
// before, it counts as under way.
class MessageWork : public Work {
 public:
  MessageWork(
      PendingMessages message,
      CollectiveRecord record,
      GroupFailuresPtr failures);

  void wait() override;
  bool is_completed() override { return finished_ns() != 0; }
  int64_t finished_ns() override { return finished_ns_.load(); }

 private:
  PendingMessages message_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
  std::atomic<int64_t> finished_ns_{0};
};

// An operation that the communicator's thread composes of several.
class ComposedWork : public Work {
 public:
  // `last` is for the thread that waits for the end, once; it may be empty.
  // `helped`: a worker whose tasks the waiting thread carries out instead of
  // sleeping; expired: none. `failures`: what an error of the operation
  // becomes; null: it stays as it is.
  ComposedWork(
      std::weak_ptr<SequentialWorker> helped,
      std::function<void()> last,
      CollectiveRecord record,
      GroupFailuresPtr failures);

  // By the thread that carries it out: its end, or its failure.
  void finish(
      std::exception_ptr error,
      std::optional<int64_t> reduced_bytes = std::nullopt);

  void wait() override;
  bool is_completed() override { return finished_ns() != 0; }
  int64_t finished_ns() override;
  std::optional<int64_t> reduced_bytes() override;

 private:
  std::weak_ptr<SequentialWorker> helped_;
  std::function<void()> last_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr error_;
  std::optional<int64_t> reduced_bytes_;
  int64_t finished_ns_ = 0;
};

}  // namespace brigade
