// Where an operation runs, as its errors tell it, and which ranks of a broken
// group are still there.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade {

// Which ranks failed, told through the store when a group breaks.
class PostMortem {
 public:
  PostMortem(StorePtr store, int rank, int size);

  // "; rank 2 did not report (lost or stalled)" or an empty string. The first
  // call waits for the others' reports, at most a second.
  std::string describe();

 private:
  StorePtr store_;
  int rank_;
  int size_;
  std::mutex mutex_;
  bool told_ = false;
  std::string result_;
};

struct Place {
  std::string group;
  int rank;
  int size;
  std::shared_ptr<PostMortem> post_mortem;

  // Throws CommError: the operation, the group, the first line of `why`, and
  // the ranks that are silent.
  [[noreturn]] void fail(const CollectiveRecord& record, const char* why) const;
};
using PlacePtr = std::shared_ptr<const Place>;

PlacePtr
make_place(const StorePtr& store, const std::string& group, int rank, int size);

}  // namespace brigade
