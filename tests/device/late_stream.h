// A stream of the late device: a queue and the thread that empties it.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "late_device.h"

namespace brigade::testing {

class LateStream {
 public:
  // The stream of a device by number; 0 is its default one.
  static LateStream& of(int device, c10::StreamId id);
  static LateStream& of(const c10::Stream& stream);

  // The work that all streams have queued and not done yet.
  struct Place {
    LateStream* stream;
    int64_t number;
    bool is_reached() const { return stream->is_done(number); }
  };
  static std::vector<Place> under_way();
  // See late_device.h.
  static void wait_for_transfers();

  // Returns the number of the work on this stream.
  int64_t push(std::function<void()> work);
  int64_t pushed();
  bool is_done(int64_t number);
  // Blocks, and makes a stream that lags go on. Throws what the work threw.
  void wait_for(int64_t number);

 private:
  explicit LateStream(bool is_default);
  [[noreturn]] void run();
  // Whether it only does what somebody waits for.
  bool is_held(Lag lag) const;
  // Whether it has work and none of it waits for another stream.
  bool can_run();
  // Lets other streams than default ones run first. On a busy machine these may
  // be late too, and a missing wait would go unnoticed.
  static void give_way();

  struct Piece {
    std::function<void()> work;
    Lag lag;
  };
  struct Streams {
    std::mutex mutex;
    std::map<std::pair<int, c10::StreamId>, LateStream*> all;
  };
  static Streams& streams();

  bool is_default_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> queue_;
  int64_t pushed_ = 0;
  int64_t done_ = 0;
  int64_t wanted_ = 0;  // number of the work that somebody waits for
  std::atomic<bool> waits_for_another_{false};
  std::exception_ptr error_;
};

}  // namespace brigade::testing
