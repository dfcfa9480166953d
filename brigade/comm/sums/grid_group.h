// A large group composed of the small ones along the axes of a grid, for values
// that all ranks of a run share now and then. It needs no connection between
// each two ranks.
//
// A rank talks to its neighbours along each axis, one axis after the other, so
// that R = 4 x 4 x 8 ranks need 3 + 3 + 7 connections each, and not 127. A
// thread that all groups of one grid share executes what is launched, in order.
//
// Costs, for n bytes: all_reduce and broadcast cost the sum over the axes;
// all_gather costs what it does in one group. reduce_scatter and all_to_all are
// made of all_reduce and all_gather, and cost as much. send() and recv() throw
// an Error: messages go between the ranks of one axis.
#pragma once

#include <memory>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {

// The groups along the axes through this rank, the slowest axis of the rank's
// number first; a rank's number in the whole is composed of its ranks in them.
// `worker` must be the same for all grids that share an axis.
CommunicatorPtr make_grid_group(
    std::vector<CommunicatorPtr> axes,
    std::shared_ptr<SequentialWorker> worker,
    CommunicatorOptions options);

}  // namespace brigade
