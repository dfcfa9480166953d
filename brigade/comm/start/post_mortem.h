// Which ranks of a broken group were lost, and the errors that name them.
//
// When a group breaks, every rank that notices reports to the store which ranks
// it missed: those that had closed their connections to it or, if none had,
// those that it waited for until the timeout. The missed ranks that report
// nothing are lost. A rank that is busy elsewhere reports nothing either, but
// no rank misses it.
//
// If all ranks report, they may have launched different collectives, each of
// which waits for its own messages: the reports name the first failure of each
// rank.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"
#include "brigade/comm/sums/group_messages.h"

namespace brigade {

// Used from any thread. Holds no process group, because the backend's threads
// may release it.
class PostMortem {
 public:
  // `names`: those of the group's ranks, for describe(); empty: "rank 1 of this
  // group".
  PostMortem(
      StorePtr store,
      int rank,
      int size,
      std::vector<std::string> names = {});

  // Reports that this rank is alive and misses these ranks, perhaps none yet.
  // Only the first missed ranks count: operations that fail later fail because
  // the connections were closed. Only the first `operation` counts too: what
  // failed, by to_string(CollectiveRecord); empty: none, or a message.
  void report(
      const std::vector<int>& missed,
      const std::string& operation = "");

  // "; rank 2 (dp 1) did not report: lost or stalled", or what other ranks had
  // launched instead, or an empty string. The first call waits up to a second
  // for the others' reports.
  std::string describe();

 private:
  class Inquiry;
  void report_locked(const std::set<int>& missed, const std::string& operation);

  // Shared with threads that wait for a store, which may never answer.
  std::shared_ptr<const Inquiry> inquiry_;
  std::mutex mutex_;
  bool has_reported_ = false;
  bool store_is_lost_ = false;
  std::set<int> missed_;
  std::string operation_;
  bool is_described_ = false;
  std::string result_;
};

// Reports the failed operations of one group and throws their errors. Used from
// any thread.
class GroupFailures {
 public:
  // `messages`: closed at the first failure, so that ranks waiting for this one
  // fail soon; none if the backend ends the group by itself.
  GroupFailures(
      const StorePtr& store,
      const CommunicatorOptions& group,
      int rank,
      std::optional<GroupMessages> messages);

  const std::shared_ptr<PostMortem>& post_mortem() const {
    return post_mortem_;
  }

  // If the error means that peers are missing, closes the group's connections
  // and reports which ranks the operation misses, so that the others learn of
  // it before this rank's next wait(). Does nothing for an error of this rank's
  // own.
  void report(const std::string& operation, const std::exception& error) const;

  // Reports, and throws CommError (for another error Error): the operation, the
  // group, the first line of the error, and the lost ranks.
  [[noreturn]] void fail(
      const CollectiveRecord& record,
      const std::exception& error) const;
  // The same for a backend that reports the failure of the group, but not of
  // which operation.
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  std::string message(const std::string& operation, const std::string& reason)
      const;

  std::string group_;
  std::vector<std::string> member_names_;  // as in CommunicatorOptions
  std::string self_;        // this rank: "rank 3 (dp 1)", "rank 1 of 2"
  std::vector<int> peers_;  // the group's other ranks
  std::optional<GroupMessages> messages_;
  // Holds no process group: the backend's threads may release it.
  std::shared_ptr<PostMortem> post_mortem_;
};
using GroupFailuresPtr = std::shared_ptr<const GroupFailures>;

}  // namespace brigade
