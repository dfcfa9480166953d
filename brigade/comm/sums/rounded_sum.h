// The all-reduce of float32 values that are quantized for communication, with
// error feedback: what rounding loses is kept and added to the values of the
// next sum (Seide et al. 2014; arXiv:1901.09847).
//
// The values form blocks (block_wire.h), which are divided among the ranks in
// equal chunks:
//
//   scatter()  values += errors; each rank sends its parts of the others'
//              chunks
//   gather()   each owner adds them in float32, to its own part as it is, and
//              sends the sum back, rounded once more
//   finish()   every rank has the same sums
//
// What the owner's rounding of a sum loses becomes part of the owner's error.
// Costs, for n values: 2 (R-1)/R n bytes in int8 (and 1/64 of that for scales)
// sent by each rank, a quarter of float32's; int4 an eighth, int2 a sixteenth.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/base/flat_range.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/sums/block_wire.h"

namespace brigade {

class RoundedSum {
 public:
  // The ranges are equal on all ranks and do not overlap; values outside of
  // them do not change. No block crosses their ends, so that equal ranges are
  // rounded to equal values, whatever lies beside them. `communicator` must
  // outlive this.
  RoundedSum(
      WireFormat format,
      const std::vector<FlatRange>& ranges,
      Communicator& communicator);

  // values: flat float32, contiguous; replaced by the sum in finish(). errors:
  // this rank's, of the same length; read and replaced; zeros at first. This
  // object keeps both until finish(). Returns the first round's Work. In a
  // group of one nothing is rounded: the errors are added and cleared.
  WorkPtr scatter(torch::Tensor values, torch::Tensor errors);
  // Called after the first round has ended; returns the second round's Work.
  WorkPtr gather();
  // Called after the second round has ended.
  void finish();

  // The bytes of a dense all-reduce that would send as many (see
  // Work::reduced_bytes()).
  int64_t wire_bytes() const;

 private:
  using Block = FlatRange;
  // Rounds a block into `wire`; what that loses becomes the block's error.
  void encode(const Block& block, uint8_t* wire);
  // Calls visit(block, its bytes in `wire`) for each block of a rank's chunk.
  template <typename Visit>
  void for_each_block(int owner, const torch::Tensor& wire, const Visit& visit);

  WireFormat format_;
  Communicator& communicator_;
  std::vector<Block> blocks_;
  int64_t chunk_;           // blocks of a rank
  torch::Tensor wire_;      // [R, chunk * bytes of a block]
  torch::Tensor received_;  // the same
  torch::Tensor values_;
  torch::Tensor errors_;
};

}  // namespace brigade
