// The all-reduce of float32 values that are sent in bf16 (gradient compression
// as PyTorch's bf16_compress_hook, but added in float32).
//
// Rank r owns the r-th chunk of the values. Each rank sends its parts of the
// others' chunks in bf16; the owner adds them to its own part in float32, in
// rank order, and sends the sum, rounded once, to all ranks. Chunks are sent in
// slices, so that rounding, messages and sums of one bucket overlap.
//
//   launch    round slice 0, send it | round slice 1, send it | ...
//   finish()  receive slice 0, add, send the sum | slice 1 ... | widen all sums
//
// Costs a rank, R ranks, n values: 2 (R-1)/R n bf16 sent and as many received;
// memory: n (R-1)/R + n bf16 until finish() returns.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/comm/sums/chunk_exchange.h"

namespace brigade {

class Bf16AllReduce {
 public:
  // Launches the first round. `values`: contiguous float32, its numel a
  // multiple of the group's size. Every rank makes the same calls in the same
  // order.
  Bf16AllReduce(const GroupMessages& messages, torch::Tensor values);

  // Waits for the first round and does the second. Passes on the transport's
  // exceptions.
  void finish();

 private:
  // Elements [begin, begin + count) of every chunk.
  struct Slice {
    int64_t begin;
    int64_t count;
    PendingMessages pending;
  };

  // A slice of a rank's chunk in the buffer that is sent.
  torch::Tensor on_wire(int owner, const Slice& slice) const;

  GroupMessages messages_;
  int rank_;
  int size_;
  int64_t chunk_;
  torch::Tensor values_;
  torch::Tensor wire_;      // [R, chunk] bf16
  torch::Tensor received_;  // [R - 1, chunk] bf16: the others', in rank order
  std::vector<Slice> slices_;
};

}  // namespace brigade
