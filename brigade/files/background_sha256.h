// SHA-256 of bytes that are written somewhere meanwhile.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "brigade/files/digest.h"

namespace brigade {

// Hashes pieces in the order in which they come, on a thread of its own that
// starts with the second one: where a file is one piece, or no thread can be
// had, the caller hashes. One thread may call it.
class BackgroundSha256 {
 public:
  BackgroundSha256() = default;
  ~BackgroundSha256();
  BackgroundSha256(const BackgroundSha256&) = delete;
  BackgroundSha256& operator=(const BackgroundSha256&) = delete;

  // The memory of `piece` stays as it is until wait() says that it is hashed.
  void add(std::span<const std::byte> piece);
  // Returns when at most `count` pieces are left to hash.
  void wait(size_t count);
  // Lower-case hexadecimal of all pieces. Call it once, last.
  std::string finish();

 private:
  Sha256 hash_;
  size_t added_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::span<const std::byte>> pieces_;  // the front one is in work
  bool is_ending_ = false;

  bool has_thread();
  void hash_all();
};

}  // namespace brigade
