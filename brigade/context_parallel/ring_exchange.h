// Passes a block of memory on to the next rank of a ring while the one of the
// rank before arrives.
//
//   start(block)   launches both; the block may be read, not written
//   finish()       waits for both; returns what arrived
//
// After finish() the block handed to start() belongs to the exchange, which
// receives the next one into it: two buffers serve any number of steps.
// Every member of the ring makes the same calls. One thread.
//
// Costs one message of the block's bytes a step, from each rank.
#pragma once

#include <torch/types.h>

#include "brigade/comm/communicator.h"

namespace brigade {

class RingExchange {
 public:
  // Exchanges that are under way at the same time need different tags.
  RingExchange(CommunicatorPtr ring, int tag);

  void start(torch::Tensor block);  // contiguous
  torch::Tensor finish();

 private:
  CommunicatorPtr ring_;
  int tag_;
  torch::Tensor outgoing_;
  torch::Tensor incoming_;
  torch::Tensor spare_;
  WorkPtr send_;
  WorkPtr recv_;
};

}  // namespace brigade
