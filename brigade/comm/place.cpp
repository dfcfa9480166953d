#include "brigade/comm/place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// How long a failed rank waits for the others to say that they failed too;
// those that stay silent are the suspects that the error names.
constexpr std::chrono::milliseconds kPostMortemWait{1000};

}  // namespace

PostMortem::PostMortem(StorePtr store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

std::string PostMortem::describe() {
  const std::lock_guard lock(mutex_);
  if (told_)
    return result_;
  told_ = true;
  try {
    store_->set(fmt::format("failed/{}", rank_), "1");
    const auto deadline = std::chrono::steady_clock::now() + kPostMortemWait;
    std::vector<int> silent;
    do {
      silent.clear();
      for (int peer = 0; peer < size_; ++peer) {
        if (!store_->contains(fmt::format("failed/{}", peer)))
          silent.push_back(peer);
      }
      if (!silent.empty())
        std::this_thread::yield();
    } while (!silent.empty() && std::chrono::steady_clock::now() < deadline);
    if (!silent.empty()) {
      result_ = fmt::format(
          "; rank{} {} of this group did not report: lost or stalled",
          silent.size() > 1 ? "s" : "",
          fmt::join(silent, ", "));
    }
  } catch (const std::exception&) {
    result_ = "; the store is lost too, so the rank cannot be named";
  }
  return result_;
}

void Place::fail(const CollectiveRecord& record, const char* why) const {
  std::string reason = why;
  reason = reason.substr(0, reason.find('\n'));
  throw CommError(fmt::format(
      "[comm] {} in group '{}' failed on rank {} of {}: {}{}",
      to_string(record),
      group,
      rank,
      size,
      reason,
      post_mortem->describe()));
}

PlacePtr make_place(
    const StorePtr& store,
    const std::string& group,
    int rank,
    int size) {
  return std::make_shared<const Place>(Place{
      group, rank, size, std::make_shared<PostMortem>(store, rank, size)});
}

}  // namespace brigade
