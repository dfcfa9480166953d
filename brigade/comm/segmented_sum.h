// The sum of a tensor over the ranks of a group, in segments: messages and sums
// of one tensor overlap, in little memory. For the files of comm/ only.
//
// Rank r owns the r-th chunk of the elements. Of each segment of the chunks,
// every rank sends the others' to their owners; the owner adds what it receives
// to its own, in rank order, and sends the sum to everybody. The messages of
// the next segment are under way while this one is added.
//
// Costs a rank, R ranks, n elements: 2 (R-1)/R n sent and as many received;
// memory: 2 segments.
#pragma once

#include <torch/types.h>

#include "brigade/comm/group_messages.h"

namespace brigade {

// Whether sum_in_segments() knows the type.
bool sums_in_segments(torch::ScalarType dtype);

// The contiguous tensor becomes the sum over ranks; the same bits on all of
// them. segment_bytes: of one rank's segment. Blocks; to be called on the
// thread of MessageKind::kParts and kSums, by all ranks in the same order. The
// transport's exceptions pass.
void sum_in_segments(
    const GroupMessages& messages,
    const torch::Tensor& tensor,
    int64_t segment_bytes);

}  // namespace brigade
