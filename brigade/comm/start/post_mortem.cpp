#include "brigade/comm/start/post_mortem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/start/answer_in_time.h"

namespace brigade {
namespace {

// The time that a failed rank waits for the reports of the others.
constexpr std::chrono::milliseconds kPostMortemWait{1000};
// The interval of its look-ups. It does not wait in the store: after a wait
// that timed out, libtorch 1.13's TCP store would take the late answer for that
// of the next request.
constexpr std::chrono::milliseconds kPostMortemPause{20};

// The longest wait for a store: if its host is out of reach, no answer and no
// error comes.
constexpr std::chrono::milliseconds kStoreWait{1000};

// Whether peers may be the cause of an error: so for errors of backends and
// LostMessages, but not for those of libtorch and the standard library about
// memory and arguments.
bool is_of_peers(const std::exception& error) {
  return dynamic_cast<const std::runtime_error*>(&error) != nullptr;
}

std::string key_of(int rank) {
  return fmt::format("failed/{}", rank);
}

std::string operation_key_of(int rank) {
  return fmt::format("operation/{}", rank);
}

}  // namespace

// The requests to the store. No member changes, so that any thread may use it.
class PostMortem::Inquiry {
 public:
  Inquiry(StorePtr store, int rank, int size, std::vector<std::string> names)
      : store_(std::move(store)),
        rank_(rank),
        size_(size),
        names_(std::move(names)) {}

  void tell(const std::set<int>& missed, const std::string& operation) const {
    if (!operation.empty())
      store_->set(operation_key_of(rank_), operation);
    // The value is never empty, which a store may take for a missing one.
    store_->set(key_of(rank_), fmt::format("{} .", fmt::join(missed, " ")));
  }

  // The lost ranks. Waits first, so that the others can report.
  std::set<int> ask(const std::set<int>& missed) const {
    // Until the deadline missing reports may still arrive and name other ranks.
    const auto deadline = std::chrono::steady_clock::now() + kPostMortemWait;
    while (!have_all_reported() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kPostMortemPause);
    return silent_ranks(missed);
  }

  // The ranks that launched another operation than `mine`, by operation, as far
  // as they have reported.
  std::map<std::string, std::set<int>> others_than(
      const std::string& mine) const {
    std::map<std::string, std::set<int>> others;
    for (int peer = 0; peer < size_; ++peer) {
      if (!store_->contains(operation_key_of(peer)))
        continue;
      const std::string theirs = store_->get(operation_key_of(peer));
      if (theirs != mine)
        others[theirs].insert(peer);
    }
    return others;
  }

  std::string names_of(const std::set<int>& ranks) const {
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

 private:
  // The report of a rank, if there is one.
  std::optional<std::set<int>> report_of(int rank) const {
    if (!store_->contains(key_of(rank)))
      return std::nullopt;
    std::istringstream text(store_->get(key_of(rank)));
    std::set<int> missed;
    for (int peer = 0; text >> peer;)
      missed.insert(peer);
    return missed;
  }

  bool have_all_reported() const {
    for (int peer = 0; peer < size_; ++peer) {
      if (!store_->contains(key_of(peer)))
        return false;
    }
    return true;
  }

  // The lost ranks, by the reports so far.
  std::set<int> silent_ranks(const std::set<int>& missed) const {
    std::set<int> silent;
    std::set<int> seen{rank_};
    std::vector<int> asked(missed.begin(), missed.end());
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

  StorePtr store_;
  int rank_;
  int size_;
  std::vector<std::string> names_;
};

PostMortem::PostMortem(
    StorePtr store,
    int rank,
    int size,
    std::vector<std::string> names)
    : inquiry_(std::make_shared<const Inquiry>(
          std::move(store),
          rank,
          size,
          std::move(names))) {}

void PostMortem::report(
    const std::vector<int>& missed,
    const std::string& operation) {
  const std::lock_guard lock(mutex_);
  report_locked({missed.begin(), missed.end()}, operation);
}

void PostMortem::report_locked(
    const std::set<int>& missed,
    const std::string& operation) {
  const bool is_news = (missed_.empty() && !missed.empty()) ||
                       (operation_.empty() && !operation.empty());
  if (has_reported_ && !is_news)
    return;
  if (missed_.empty())
    missed_ = missed;
  if (operation_.empty())
    operation_ = operation;
  has_reported_ = true;
  if (store_is_lost_)
    return;
  try {
    store_is_lost_ = !answer_in_time<bool>(
        [inquiry = inquiry_, missed = missed_, operation = operation_] {
          inquiry->tell(missed, operation);
          return true;
        },
        kStoreWait);
  } catch (const std::exception&) {
    // describe() will find it lost too.
  }
}

std::string PostMortem::describe() {
  const std::lock_guard lock(mutex_);
  if (is_described_)
    return result_;
  is_described_ = true;
  report_locked({}, "");
  struct Answer {
    std::set<int> silent;
    std::map<std::string, std::set<int>> others;  // by operation
  };
  std::optional<Answer> answer;
  try {
    if (!store_is_lost_)
      answer = answer_in_time<Answer>(
          [inquiry = inquiry_, missed = missed_, operation = operation_] {
            Answer found{.silent = inquiry->ask(missed), .others = {}};
            if (!operation.empty())
              found.others = inquiry->others_than(operation);
            return found;
          },
          kPostMortemWait + kStoreWait);
  } catch (const std::exception&) {
    // The store is lost.
  }
  if (!answer) {
    result_ = "; the store is lost too, so the rank cannot be named";
    if (!missed_.empty()) {
      result_ = fmt::format(
          "; {} closed the connection or sent nothing, and the store is lost "
          "too",
          inquiry_->names_of(missed_));
    }
  } else if (!answer->silent.empty()) {
    result_ = fmt::format(
        "; {} did not report: lost or stalled",
        inquiry_->names_of(answer->silent));
  } else if (!answer->others.empty()) {
    for (const auto& [operation, ranks] : answer->others)
      result_ +=
          fmt::format("; {} launched {}", inquiry_->names_of(ranks), operation);
    result_ +=
        ". All ranks must launch the same collectives in the same order; "
        "BRIGADE_CHECK_COLLECTIVES=1 compares them at each launch";
  }
  return result_;
}

GroupFailures::GroupFailures(
    const StorePtr& store,
    const CommunicatorOptions& group,
    int rank,
    std::optional<GroupMessages> messages)
    : group_(group.name),
      member_names_(group.member_names),
      self_(
          group.member_names.empty()
              ? fmt::format("rank {} of {}", rank, group.members.size())
              : group.member_names.at(static_cast<size_t>(rank))),
      messages_(std::move(messages)) {
  const int size = static_cast<int>(group.members.size());
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank)
      peers_.push_back(peer);
  }
  post_mortem_ = std::make_shared<PostMortem>(store, rank, size, member_names_);
}

void GroupFailures::report(
    const std::string& operation,
    const std::exception& error) const {
  if (!is_of_peers(error))
    return;
  std::vector<int> missed;
  if (messages_)
    missed = messages_->close();
  if (missed.empty()) {
    // An operation of the backend does not report which ranks it waited for.
    const auto* lost = dynamic_cast<const LostMessages*>(&error);
    missed = lost != nullptr ? lost->peers() : peers_;
  }
  post_mortem_->report(missed, operation);
}

void GroupFailures::fail(
    const CollectiveRecord& record,
    const std::exception& error) const {
  report(is_point_to_point(record.op) ? "" : to_string(record), error);
  std::string operation = to_string(record);
  if (record.peer >= 0 && !member_names_.empty()) {
    CollectiveRecord alone = record;
    alone.peer = -1;
    operation = fmt::format(
        "{} with {}",
        to_string(alone),
        member_names_.at(static_cast<size_t>(record.peer)));
  }
  if (!is_of_peers(error))
    throw Error(ExitCode::kUnexpected, message(operation, error.what()));
  throw CommError(message(operation, error.what()) + post_mortem_->describe());
}

void GroupFailures::fail(const std::string& reason) const {
  report("", std::runtime_error(reason));
  throw CommError(message("an operation", reason) + post_mortem_->describe());
}

std::string GroupFailures::message(
    const std::string& operation,
    const std::string& reason) const {
  return fmt::format(
      "[comm] {} in group '{}' failed on {}: {}",
      operation,
      group_,
      self_,
      reason.substr(0, reason.find('\n')));
}

}  // namespace brigade
