#include "brigade/files/background_sha256.h"

#include <system_error>

namespace brigade {

BackgroundSha256::~BackgroundSha256() {
  if (!thread_.joinable())
    return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundSha256::add(std::span<const std::byte> piece) {
  if (!has_thread()) {
    hash_.add(piece.data(), piece.size());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece);
  }
  changed_.notify_all();
}

void BackgroundSha256::wait(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pieces_.size() <= count; });
}

std::string BackgroundSha256::finish() {
  wait(0);
  return hash_.finish();
}

bool BackgroundSha256::has_thread() {
  if (added_++ == 0)
    return false;
  if (thread_.joinable())
    return true;
  try {
    thread_ = std::thread([this] { hash_all(); });
    return true;
  } catch (const std::system_error&) {
    return false;  // a limit of threads or memory: slower, and right
  }
}

void BackgroundSha256::hash_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !pieces_.empty(); });
    if (is_ending_)
      return;
    const auto piece = pieces_.front();
    lock.unlock();
    hash_.add(piece.data(), piece.size());
    lock.lock();
    pieces_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace brigade
