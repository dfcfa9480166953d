#include "late_stream.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace brigade::testing {
namespace {

std::atomic<Lag> current_lag{Lag::kCompute};

// The longest time that lagging computation leaves to other work each time that
// somebody waits for it. A transfer whose peer has not come takes that long.
constexpr std::chrono::milliseconds kLag{20};

// The stream whose work this thread does, or null.
thread_local LateStream* of_this_thread = nullptr;

}  // namespace

void set_lag(Lag lag) {
  current_lag = lag;
}

void wait_for_transfers() {
  LateStream::wait_for_transfers();
}

LateStream::LateStream(bool is_default) : is_default_(is_default) {
  std::thread([this] { run(); }).detach();
}

// Never destroyed, since their threads live as long as the program.
LateStream::Streams& LateStream::streams() {
  static auto& streams = *new Streams;
  return streams;
}

LateStream& LateStream::of(int device, c10::StreamId id) {
  const std::lock_guard lock(streams().mutex);
  LateStream*& stream = streams().all[{device, id}];
  if (stream == nullptr)
    stream = new LateStream(id == 0);
  return *stream;
}

std::vector<LateStream::Place> LateStream::under_way() {
  std::vector<Place> places;
  const std::lock_guard lock(streams().mutex);
  for (const auto& [key, stream] : streams().all) {
    const Place place{stream, stream->pushed()};
    if (!place.is_reached())
      places.push_back(place);
  }
  return places;
}

void LateStream::wait_for_transfers() {
  for (const Place& place : under_way()) {
    if (!place.stream->is_default_)
      place.stream->wait_for(place.number);
  }
}

bool LateStream::is_held(Lag lag) const {
  return lag == (is_default_ ? Lag::kCompute : Lag::kHeldTransfers);
}

LateStream& LateStream::of(const c10::Stream& stream) {
  return of(stream.device_index(), stream.id());
}

int64_t LateStream::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), current_lag});
  changed_.notify_all();
  return ++pushed_;
}

int64_t LateStream::pushed() {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool LateStream::is_done(int64_t number) {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

bool LateStream::can_run() {
  const std::lock_guard lock(mutex_);
  return done_ < pushed_ && !waits_for_another_;
}

void LateStream::give_way() {
  const auto others_can_run = [] {
    const std::lock_guard lock(streams().mutex);
    return std::any_of(
        streams().all.begin(), streams().all.end(), [](const auto& each) {
          return !each.second->is_default_ && each.second->can_run();
        });
  };
  const auto deadline = std::chrono::steady_clock::now() + kLag;
  while (others_can_run() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void LateStream::wait_for(int64_t number) {
  LateStream* const waiting = of_this_thread;
  if (waiting != nullptr)
    waiting->waits_for_another_ = true;
  std::unique_lock lock(mutex_);
  wanted_ = std::max(wanted_, number);
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= number; });
  if (waiting != nullptr)
    waiting->waits_for_another_ = false;
  if (const auto error = std::exchange(error_, nullptr))
    std::rethrow_exception(error);
}

void LateStream::run() {
  at::set_num_threads(1);
  of_this_thread = this;
  int64_t gave_way_at = 0;  // wanted_ when it last did
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      if (queue_.empty())
        return false;
      return !is_held(queue_.front().lag) || done_ < wanted_;
    });
    if (is_default_ && queue_.front().lag == Lag::kCompute &&
        gave_way_at < wanted_) {
      gave_way_at = wanted_;
      lock.unlock();
      give_way();
      lock.lock();
    }
    Piece piece = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!is_default_ && piece.lag != Lag::kCompute)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::exception_ptr error;
    try {
      piece.work();
    } catch (...) {
      error = std::current_exception();
    }
    piece.work = nullptr;  // lets tensors go
    lock.lock();
    ++done_;
    if (!error_)
      error_ = error;
    changed_.notify_all();
  }
}

}  // namespace brigade::testing
