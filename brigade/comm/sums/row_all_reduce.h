// The sum over the ranks of a group of matrices most of whose rows are zero, as
// an embedding's gradients are: only rows that are not zero are sent. Used by
// the files of comm/ only.
//
//   bitmaps   every rank tells the others which of its rows are not zero
//   rows      every rank sends those rows, packed, to all others
//   add       every rank adds all of them up in rank order: the sums are equal
//             to the bit
//
// If sending rows would cost more than sending the matrix, it is summed in
// chunks (chunk_exchange.h); all ranks decide that from the same bitmaps.
//
// Costs a rank, R ranks of which none has more than n of N rows of b bytes: at
// most (R-1)(n b + N/8) sent and as many received; memory: R n b.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "brigade/comm/sums/group_messages.h"

namespace brigade {

// matrix: contiguous [N, C] of float32 or float64; it becomes the sum. Blocks;
// must be called on the thread of collectives' messages, by all ranks in the
// same order. Returns Work::reduced_bytes(). Passes on the transport's
// exceptions.
int64_t sum_rows(const GroupMessages& messages, const torch::Tensor& matrix);

}  // namespace brigade
