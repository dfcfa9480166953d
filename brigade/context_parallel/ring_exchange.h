// Passes a block of memory on to a neighbour in a ring while the one of the
// other neighbour arrives.
//
//   expect(sizes)   launches the receive, before there is anything to send
//   start(block)    launches the send; the block may be read, not written
//   finish()        waits for both; returns what arrived
//
// After finish() the block handed to start() belongs to the exchange, which
// receives the next one into it where that fits: two buffers serve any number
// of steps of one size. Blocks may differ in size from rank to rank; those
// without elements are not sent, which sender and receiver must agree on.
// Every member of the ring makes the same calls. One thread.
//
// Costs one message of the block's bytes per step from each rank.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// Whether blocks move from rank r to r + 1 or to r - 1.
enum class RingDirection { kUp, kDown };

class RingExchange {
 public:
  // Exchanges that are under way at the same time need different tags.
  RingExchange(
      CommunicatorPtr ring,
      int tag,
      RingDirection direction = RingDirection::kUp);

  // A receive that is posted before the block is sent lets it be sent at once,
  // without a handshake. Where a backend carries out messages in the order of
  // the calls, start() launches both at once.
  void expect(
      const std::vector<int64_t>& sizes,
      const torch::TensorOptions& options);
  void start(torch::Tensor block);  // contiguous
  torch::Tensor finish();

 private:
  CommunicatorPtr ring_;
  int tag_;
  int destination_;
  int source_;
  torch::Tensor outgoing_;
  torch::Tensor incoming_;
  torch::Tensor spare_;
  WorkPtr send_;
  WorkPtr recv_;
};

}  // namespace brigade
