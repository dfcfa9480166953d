// Whether a step's gradients have the same bits when they are computed again:
// a processor or memory that fails changes them without a word.
//
// A step that is checked runs its micro-batches twice. The first time, buckets
// are noted and not reduced (StageRuntime::treat_buckets); the second time they
// are noted just before they are reduced, and the notes are compared.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/bucket_hook.h"

namespace brigade {

// A parameter's name, and sum_of_bits() of its gradient on this rank when its
// bucket was to be reduced. In the order of launch; where every micro-batch is
// reduced (ZeRO's stages 2 and 3), a parameter once per micro-batch.
using GradientNotes = std::vector<std::pair<std::string, int64_t>>;

void note_gradients(const BucketView& bucket, GradientNotes& notes);

// The first parameter whose bits differ; "": none does.
std::string find_unlike_gradient(
    const GradientNotes& first,
    const GradientNotes& second);

// Three computations of the same gradients on this rank, of which the first two
// differ in `name`, or in nothing (""). Collective: throws an Error of exit
// code 1 that names step, ranks and parameters, and says whether the third
// repeats the difference.
struct UnlikeGradients {
  std::string name;
  const GradientNotes& rehearsed;
  const GradientNotes& used;
  const GradientNotes& again;
};
[[noreturn]] void fail_with_unlike_gradients(
    int64_t step,
    const UnlikeGradients& mine,
    Communicator& world);

}  // namespace brigade
