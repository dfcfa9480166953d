// Where an operation runs, as its errors tell it, and which rank of a broken
// group is to blame.
//
// When a group breaks, every rank that is there says so in the store, and which
// ranks it missed: those that had closed their connections to it or, if none
// had, those that it waited for until the timeout. To blame are the missed ones
// that say nothing. A rank that is busy elsewhere says nothing either, but
// nobody misses it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/gloo_messages.h"
#include "brigade/comm/store.h"

namespace brigade {

// Any thread. Holds no process group: the backend's threads may release it.
class PostMortem {
 public:
  PostMortem(StorePtr store, int rank, int size);

  // Says that this rank is there and misses these ranks, perhaps none yet. The
  // first that it misses count: operations that fail later fail because the
  // connections were closed.
  void report(const std::vector<int>& missed);

  // "; rank 2 of this group did not report: lost or stalled" or an empty
  // string. The first call waits for the others' reports, at most a second.
  std::string describe();

 private:
  void report_locked(const std::set<int>& missed);
  // What a rank reported, if it did.
  std::optional<std::set<int>> report_of(int rank);
  bool have_all_reported();
  // The ranks to blame by what has been reported by now.
  std::set<int> silent_ranks();

  StorePtr store_;
  int rank_;
  int size_;
  std::mutex mutex_;
  bool has_reported_ = false;
  std::set<int> missed_;
  bool told_ = false;
  std::string result_;
};

struct Place {
  std::string group;
  GlooMessages messages;
  std::shared_ptr<PostMortem> post_mortem;

  // Closes the group's connections and reports whom the operation misses, for
  // the others to know without waiting for this rank's next wait().
  void report(const std::exception& error) const;

  // Reports, and throws CommError: the operation, the group, the first line of
  // the error, and the ranks to blame.
  [[noreturn]] void fail(
      const CollectiveRecord& record,
      const std::exception& error) const;
};
using PlacePtr = std::shared_ptr<const Place>;

PlacePtr make_place(
    const StorePtr& store,
    const std::string& group,
    const GlooMessages& messages);

}  // namespace brigade
