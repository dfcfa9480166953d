#include "brigade/comm/post_mortem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// How long a failed rank waits for the others to say that they failed too.
constexpr std::chrono::milliseconds kPostMortemWait{1000};
// How often it looks: a store's wait that ends by its timeout leaves libtorch
// 1.13's TCP store with an answer that the next question would take for its.
constexpr std::chrono::milliseconds kPostMortemPause{20};

std::string key_of(int rank) {
  return fmt::format("failed/{}", rank);
}

}  // namespace

PostMortem::PostMortem(
    StorePtr store,
    int rank,
    int size,
    std::vector<std::string> names)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      names_(std::move(names)) {}

void PostMortem::report(const std::vector<int>& missed) {
  const std::lock_guard lock(mutex_);
  try {
    report_locked({missed.begin(), missed.end()});
  } catch (const std::exception&) {
    // describe() will find it lost too.
  }
}

void PostMortem::report_locked(const std::set<int>& missed) {
  const bool is_news = missed_.empty() && !missed.empty();
  if (has_reported_ && !is_news)
    return;
  if (is_news)
    missed_ = missed;
  // Never an empty value, which a store may take for none.
  store_->set(key_of(rank_), fmt::format("{} .", fmt::join(missed_, " ")));
  has_reported_ = true;
}

std::optional<std::set<int>> PostMortem::report_of(int rank) {
  if (!store_->contains(key_of(rank)))
    return std::nullopt;
  std::istringstream text(store_->get(key_of(rank)));
  std::set<int> missed;
  for (int peer = 0; text >> peer;)
    missed.insert(peer);
  return missed;
}

bool PostMortem::have_all_reported() {
  for (int peer = 0; peer < size_; ++peer) {
    if (!store_->contains(key_of(peer)))
      return false;
  }
  return true;
}

std::set<int> PostMortem::silent_ranks() {
  std::set<int> silent;
  std::set<int> seen{rank_};
  std::vector<int> asked(missed_.begin(), missed_.end());
  while (!asked.empty()) {
    const int peer = asked.back();
    asked.pop_back();
    if (!seen.insert(peer).second)
      continue;
    if (const auto theirs = report_of(peer))
      asked.insert(asked.end(), theirs->begin(), theirs->end());
    else
      silent.insert(peer);
  }
  return silent;
}

std::string PostMortem::names_of(const std::set<int>& ranks) const {
  if (names_.empty()) {
    return fmt::format(
        "rank{} {} of this group",
        ranks.size() > 1 ? "s" : "",
        fmt::join(ranks, ", "));
  }
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(names_.at(static_cast<size_t>(rank)));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string PostMortem::describe() {
  const std::lock_guard lock(mutex_);
  if (is_described_)
    return result_;
  is_described_ = true;
  try {
    report_locked({});
    // Who is silent until then: reports come later, and name others.
    const auto deadline = std::chrono::steady_clock::now() + kPostMortemWait;
    while (!have_all_reported() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kPostMortemPause);
    const std::set<int> silent = silent_ranks();
    if (!silent.empty())
      result_ =
          fmt::format("; {} did not report: lost or stalled", names_of(silent));
  } catch (const std::exception&) {
    result_ = "; the store is lost too, so the rank cannot be named";
  }
  return result_;
}

void GroupFailures::report(const std::exception& error) const {
  std::vector<int> missed = messages.close();
  if (missed.empty()) {
    if (const auto* lost = dynamic_cast<const LostMessages*>(&error)) {
      missed = lost->peers();
    } else if (dynamic_cast<const std::runtime_error*>(&error) != nullptr) {
      // Gloo's, of a collective of its own: it does not say of whom.
      for (int peer = 0; peer < messages.size(); ++peer) {
        if (peer != messages.rank())
          missed.push_back(peer);
      }
    }
    // Anything else, memory or an argument, is this rank's own failure.
  }
  post_mortem->report(missed);
}

void GroupFailures::fail(
    const CollectiveRecord& record,
    const std::exception& error) const {
  report(error);
  std::string reason = error.what();
  reason = reason.substr(0, reason.find('\n'));
  CollectiveRecord alone = record;
  std::string operation = to_string(record);
  if (record.peer >= 0 && !member_names.empty()) {
    alone.peer = -1;
    operation = fmt::format(
        "{} with {}",
        to_string(alone),
        member_names.at(static_cast<size_t>(record.peer)));
  }
  throw CommError(fmt::format(
      "[comm] {} in group '{}' failed on {}: {}{}",
      operation,
      group,
      self,
      reason,
      post_mortem->describe()));
}

GroupFailuresPtr make_group_failures(
    const StorePtr& store,
    const CommunicatorOptions& group,
    const GlooMessages& messages) {
  const int rank = messages.rank();
  const std::vector<std::string>& names = group.member_names;
  return std::make_shared<const GroupFailures>(GroupFailures{
      .group = group.name,
      .member_names = names,
      .self = names.empty()
                  ? fmt::format("rank {} of {}", rank, messages.size())
                  : names.at(static_cast<size_t>(rank)),
      .messages = messages,
      .post_mortem =
          std::make_shared<PostMortem>(store, rank, messages.size(), names)});
}

}  // namespace brigade
