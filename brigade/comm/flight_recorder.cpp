#include "brigade/comm/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "brigade/comm/communicator.h"
#include "brigade/metrics/clock.h"

namespace brigade {

int FlightRecorder::add_group(const FlightGroup& group) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find(groups_.begin(), groups_.end(), group);
  if (known != groups_.end())
    return static_cast<int>(known - groups_.begin());
  groups_.push_back(group);
  return static_cast<int>(groups_.size()) - 1;
}

void FlightRecorder::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  begun_step_ns_ = steady_now_ns();
}

int64_t FlightRecorder::begin(FlightOperation operation) {
  const std::lock_guard lock(mutex_);
  operation.step = step_;
  entries_.push_back({std::move(operation), {}});
  if (static_cast<int64_t>(entries_.size()) > kCapacity)
    entries_.pop_front();
  return next_id_++;
}

FlightRecorder::Entry* FlightRecorder::find(int64_t id) {
  const int64_t first = next_id_ - static_cast<int64_t>(entries_.size());
  return id < first ? nullptr : &entries_[static_cast<size_t>(id - first)];
}

void FlightRecorder::launched(int64_t id, const std::weak_ptr<Work>& work) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id))
    entry->work = work;
}

void FlightRecorder::set_awaited(int64_t id, bool is_awaited) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id))
    entry->operation.is_awaited = is_awaited;
}

void FlightRecorder::waited(int64_t begun_ns) {
  const int64_t now_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  waited_ns_ += now_ns - begun_ns;
}

void FlightRecorder::finished(int64_t id, int64_t begun_ns) {
  const int64_t now_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  waited_ns_ += now_ns - begun_ns;
  Entry* entry = find(id);
  if (entry == nullptr || entry->operation.state != FlightState::kUnderWay)
    return;
  entry->operation.state = FlightState::kFinished;
  entry->operation.finished_ns = now_ns;
}

void FlightRecorder::ordered(int64_t id, std::shared_ptr<Work> work) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id))
    entry->kept = std::move(work);
}

void FlightRecorder::failed(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (Entry* entry = find(id))
    entry->operation.state = FlightState::kFailed;
}

int64_t FlightRecorder::waited_ns() const {
  const std::lock_guard lock(mutex_);
  return waited_ns_;
}

FlightRecording FlightRecorder::recording(const std::string& reason) const {
  const std::lock_guard lock(mutex_);
  FlightRecording result{
      .rank = rank_,
      .step = step_,
      .reason = reason,
      .written_ns = steady_now_ns(),
      .begun_step_ns = begun_step_ns_,
      .groups = groups_,
      .operations = {}};
  for (const Entry& entry : entries_) {
    result.operations.push_back(entry.operation);
    FlightOperation& operation = result.operations.back();
    const auto work = entry.work.lock();
    if (operation.state != FlightState::kUnderWay || work == nullptr)
      continue;
    // It has ended, but nothing has waited for it yet.
    operation.finished_ns = work->finished_ns();
    if (operation.finished_ns != 0)
      operation.state = FlightState::kFinished;
  }
  return result;
}

}  // namespace brigade
