// What is done with a full bucket: by default all-reduced; a hook may replace
// the collective, as PyTorch's communication hooks do.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// A full bucket as a hook sees it.
struct BucketView {
  int index = 0;            // in launch order, the same on all ranks
  int buckets = 1;          // how many there are
  torch::Tensor main_grad;  // [numel], flat; to be replaced by the sum
  // The part of main_grad where the sum is needed: all of it, but with
  // GradSyncOptions::sharding this rank's range, the rank-th of equal ones.
  torch::Tensor owned;
  std::vector<std::string> names;     // of its parameters, in memory order
  std::vector<torch::Tensor> params;  // the same
  std::vector<torch::Tensor> grads;   // views into main_grad, shaped as params
  // Whether a mean has divided main_grad by the number of ranks already, so that
  // the sum is the mean.
  bool is_averaged = false;
  // Elements of a row, if main_grad is a matrix most of whose rows are zero
  // (and padding behind it); else 0.
  int64_t sparse_row_numel = 0;
  // What a hook may say where its Work does not: see Work::reduced_bytes().
  std::optional<int64_t> reduced_bytes;
};

// Launches the reduction of bucket.main_grad over the communicator and returns
// at once; the returned Work's wait() leaves the sum over ranks in `owned`.
// Called in plan order on the thread of backward, or for buckets that backward
// left on the one that ends the step. Exceptions reach the caller of backward()
// with the bucket named.
using BucketHook =
    std::function<WorkPtr(BucketView& bucket, Communicator& communicator)>;

// The sum, in main_grad's own dtype: 2n(R-1)/R bytes sent by each rank. Of
// sparse rows those that are not zero: Communicator::all_reduce_rows.
BucketHook all_reduce_hook();

// bf16 on the wire, summed in fp32 and rounded once: half the bytes of
// all_reduce_hook. Gradients keep 8 bits of mantissa; those of float64 weights
// are reduced as they are. Sparse rows are not told apart.
BucketHook bf16_hook();

// fp16 on the wire, as PyTorch's fp16_compress_hook: divided first by the number
// of ranks (where the mean has not done so), and by `divisor` where gradients
// are sums over many samples, so that large ones do not overflow: what is then
// above 65504 does. Half the bytes of all_reduce_hook; gradients keep 11 bits of
// mantissa, and what is below 6e-8 times these numbers is lost. Those of
// float64 weights, and those of one rank, are reduced as they are.
BucketHook fp16_hook(double divisor = 1);

// int8 on the wire with a float32 scale per 256 gradients of one parameter
// (comm/sums/rounded_sum.h): n(R-1)/2R bytes sent by each rank and 1/64 more,
// with n in float32: a quarter of all_reduce_hook's. What rounding loses is
// added to the next step's gradients (error feedback), so that it is late and
// not lost; costs one more float32 per gradient. Begins again when buckets are
// planned again. The second half of each reduction starts when the step's end
// is waited for. Gradients of float64 weights are reduced as they are. Throws
// ConfigError for sharded gradients.
BucketHook int8_hook();

// See powersgd_hook().
struct PowerSgdOptions {
  int rank = 4;  // columns of the two factors
  // Steps at first in which gradients are reduced as they are, because the
  // first ones are not of low rank.
  int64_t exact_steps = 0;
};

// PowerSGD (arXiv:1905.13727): of a matrix M [N, M], gradient and kept error,
// the sum of P = M Q and, with P made orthonormal, of Q = M^T P; the
// gradient is P Q^T. Q begins the next step (warm start), and M - P Q^T is
// the next error. Per matrix 8 rank (N + M)(R-1)/R bytes sent by each rank.
// Vectors, and matrices where that is not at most half of all_reduce_hook's,
// are reduced as they are, in the same collective. Memory: one more float32 per
// gradient. As int8_hook() otherwise.
BucketHook powersgd_hook(const PowerSgdOptions& options = {});

// The sum of this rank's range alone, for sharded gradients: n(R-1)/R bytes
// sent by each rank. `wire` kBFloat16 or kHalf halves them: each rank's
// gradients are rounded, and added in float32, where its own are not rounded
// (kHalf: divided by the number of ranks and by `divisor` first). Gradients of
// float64 weights are sent as they are.
BucketHook reduce_scatter_hook(
    torch::ScalarType wire = torch::kFloat,
    double divisor = 1);

// `hook`, and then `after` with the reduced bucket: on the thread that waits
// for the step's end, bucket by bucket, before the gradients are handed over.
// Not called when the reduction failed.
BucketHook then(BucketHook hook, std::function<void(BucketView& bucket)> after);

// Notes each bucket that is launched in `log`, which keeps its memory, then
// does what `inner` does. For tests.
BucketHook recording_hook(
    std::shared_ptr<std::vector<BucketView>> log,
    BucketHook inner = all_reduce_hook());

}  // namespace brigade
