// Communicator over c10d's ProcessGroupNCCL, for tensors on a GPU, with a Gloo
// group for tensors on the CPU (values of agreement, losses).
//
// Compiled if libtorch has NCCL. It makes the c10d calls that PyTorch's own DDP
// and FSDP make; it has never run (docs/gpu.md).
//
// A collective is ordered behind the launching thread's current stream, and
// runs on NCCL's own. wait() orders the waiting thread's current stream behind
// it and returns; later errors are thrown by wait_on_host() and
// throw_if_failed(). After the timeout, or when a peer is lost, c10d's watchdog
// aborts the group's communicators, so that the GPU goes on (with garbage) and
// no host waits longer.
//
// NCCL's messages have no tags: they are matched by their order, and two ranks
// must not both receive first. Two ranks connect at their first message.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/store.h"
#include "brigade/launch/environment.h"

namespace brigade {

// Throws ConfigError if this build has no NCCL, or this rank no GPU.
void check_nccl(const LaunchEnvironment& environment);

// Joins the group as make_gloo_communicator() does; options.device is a GPU.
// Changes the process: sets TORCH_NCCL_ASYNC_ERROR_HANDLING to 2, where it is
// not set, because c10d otherwise ends the process at the first error.
CommunicatorPtr make_nccl_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const GlooOptions& gloo);

}  // namespace brigade
