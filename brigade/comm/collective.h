// The kinds of operations of a group, and the record of one that was launched.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "brigade/options/choice.h"

namespace brigade {

// The operation that combines the tensors of a group, element by element.
enum class ReduceOp { kSum, kMax, kMin };

// The kind of an operation of a group.
enum class Collective {
  kAllReduce,
  kAllReduceRows,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kAllToAllSingle,
  kSend,
  kRecv,
  kBarrier,
};
// The names in messages and records.
template <>
inline constexpr std::array kChoices<Collective>{
    Choice{Collective::kAllReduce, "all_reduce"},
    Choice{Collective::kAllReduceRows, "all_reduce_rows"},
    Choice{Collective::kReduceScatter, "reduce_scatter"},
    Choice{Collective::kAllGather, "all_gather"},
    Choice{Collective::kBroadcast, "broadcast"},
    Choice{Collective::kAllToAll, "all_to_all"},
    Choice{Collective::kAllToAllSingle, "all_to_all_single"},
    Choice{Collective::kSend, "send"},
    Choice{Collective::kRecv, "recv"},
    Choice{Collective::kBarrier, "barrier"}};

// One launched operation.
struct CollectiveRecord {
  Collective op = Collective::kBarrier;
  torch::ScalarType dtype = torch::kFloat;
  // The elements of this rank's largest operand; for kAllToAllSingle those of
  // one row, because the numbers of rows differ between ranks.
  int64_t numel = 0;
  int64_t bytes = 0;            // of this rank's largest operand
  int64_t sequence_number = 0;  // the same on all members for collectives
  int peer = -1;                // root, source or destination; -1: none
  int64_t flight_id = -1;       // in the rank's FlightRecorder; -1: none
  int64_t launched_ns = 0;      // of the steady clock
};

// "all_reduce #12 of 1024 x Float": how the errors of comm/ name an operation.
std::string to_string(const CollectiveRecord& record);

// Whether it is a message between two ranks.
bool is_point_to_point(Collective op);

}  // namespace brigade
