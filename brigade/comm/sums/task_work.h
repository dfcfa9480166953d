// An operation of several steps, carried out by a thread of its communicator;
// for the files of comm/ only.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/start/post_mortem.h"

namespace brigade {

struct TaskOptions {
  // What an error of the task becomes; null: it stays as it is.
  GroupFailuresPtr failures;
  // The waiting thread carries out what is queued, instead of sleeping until
  // the worker has. The worker itself is not kept alive by the Work.
  bool waiting_helps = false;
};

// Queues `task` on the worker, behind what is queued there already. It returns
// Work::reduced_bytes(); what it throws is thrown by every wait().
WorkPtr launch_task(
    const std::shared_ptr<SequentialWorker>& worker,
    const CollectiveRecord& record,
    std::function<std::optional<int64_t>()> task,
    const TaskOptions& options = {});

}  // namespace brigade
