// The latest operations of one rank, over all its groups, kept in memory; after
// an error they show what this rank waited for.
//
// Used from any thread. Groups hold it by pointer; ranks that are threads have
// one each.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "brigade/flight/recording.h"

namespace brigade {

class Work;

class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 1000;  // operations

  explicit FlightRecorder(int global_rank) : rank_(global_rank) {}

  // Returns the index of the group, for FlightOperation::group. Adding the same
  // group again returns the same index.
  int add_group(const FlightGroup& group);
  // Operations that follow belong to `step`, which begins now.
  void begin_step(int64_t step);

  // Records an operation that is about to be launched, and fills in `step`.
  // Returns its id.
  int64_t begin(FlightOperation operation);
  // Notes the work of the operation, without keeping it alive: its end is
  // looked up if nothing waited for it.
  void launched(int64_t id, const std::weak_ptr<Work>& work);
  // From now on somebody waits for the operation, or nobody does.
  void set_awaited(int64_t id, bool is_awaited);
  // A thread waited for other ranks from `begun_ns` to now.
  void waited(int64_t begun_ns);
  // The same, and the thread saw the operation's end.
  void finished(int64_t id, int64_t begun_ns);
  // The device's further work waits for the operation, which is under way.
  // Keeps the work, to learn its end.
  void ordered(int64_t id, std::shared_ptr<Work> work);
  // The operation ended with an error.
  void failed(int64_t id);

  // Nanoseconds that threads spent waiting for other ranks, ever.
  int64_t waited_ns() const;
  // A copy of the present recording; `reason` says why it is taken.
  FlightRecording recording(const std::string& reason) const;

 private:
  struct Entry {
    FlightOperation operation;
    std::weak_ptr<Work> work;
    std::shared_ptr<Work> kept;
  };
  // nullptr if the operation was dropped because many followed.
  Entry* find(int64_t id);

  const int rank_;
  mutable std::mutex mutex_;
  std::vector<FlightGroup> groups_;
  std::deque<Entry> entries_;
  int64_t next_id_ = 0;  // of the entry after the last
  int64_t step_ = 0;
  int64_t begun_step_ns_ = 0;
  int64_t waited_ns_ = 0;
};
// Shared by the groups of one rank.
using FlightRecorderPtr = std::shared_ptr<FlightRecorder>;

}  // namespace brigade
