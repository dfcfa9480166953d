// Works over c10d's; for the files of comm/ only.
#pragma once

#include <atomic>
#include <memory>

#include "brigade/comm/communicator.h"
#include "brigade/comm/gloo/gloo_messages.h"
#include "brigade/comm/start/post_mortem.h"

namespace brigade {

// A collective that c10d carries out by itself.
class NativeWork : public Work {
 public:
  NativeWork(
      C10dWorkPtr work,
      CollectiveRecord record,
      GroupFailuresPtr failures);

  void wait() override;
  bool is_completed() override;
  int64_t finished_ns() override { return finished_ns_->load(); }

 private:
  C10dWorkPtr work_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
  // Shared with the future's callback.
  std::shared_ptr<std::atomic<int64_t>> finished_ns_;
};

}  // namespace brigade
