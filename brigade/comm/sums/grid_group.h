// A large group made of the small ones along the axes of a grid: for values
// that all ranks of a run share now and then, without a connection between each
// two.
//
// A rank talks to its neighbours along each axis, one axis after the other, so
// that R = 4 x 4 x 8 ranks need 3 + 3 + 7 connections each, and not 127. What
// is launched is carried out in order by a thread that all groups of one grid
// share.
//
// Costs, for n bytes: all_reduce and broadcast those of each axis in turn;
// all_gather that of the whole. reduce_scatter and all_to_all are made of
// all_reduce and all_gather, and cost as much. Messages are an Error: they go
// between the ranks of one axis.
#pragma once

#include <memory>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {

// The groups along the axes through this rank, the slowest axis of the rank's
// number first; the number of a rank in the whole is made of its ranks in them.
// `worker`: the same for all grids that share an axis.
CommunicatorPtr make_grid_group(
    std::vector<CommunicatorPtr> axes,
    std::shared_ptr<SequentialWorker> worker,
    CommunicatorOptions options);

}  // namespace brigade
