// What is done with a full bucket: by default it is all-reduced; a hook may
// replace the collective, as PyTorch's DDP communication hooks do.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/options/powersgd.h"
#include "brigade/param/sharding.h"

namespace brigade {

// A full bucket as a hook sees it.
struct BucketView {
  int index = 0;            // in launch order, the same on all ranks
  int buckets = 1;          // how many there are
  torch::Tensor main_grad;  // [numel], flat; to be replaced by the sum
  // The part of main_grad where the sum is needed: all of it or, with
  // GradSyncOptions::sharding, this rank's range, the rank-th of equal ones.
  torch::Tensor owned;
  std::vector<std::string> names;     // of its parameters, in memory order
  std::vector<torch::Tensor> params;  // the same
  std::vector<torch::Tensor> grads;   // views into main_grad, shaped as params
  // Whether a mean has divided main_grad by the number of ranks already, so
  // that the sum is the mean.
  bool is_averaged = false;
  // Elements of a row if main_grad is a matrix, followed by padding, most of
  // whose rows are zero; else 0.
  int64_t sparse_row_numel = 0;
  // Set by a hook whose Work does not report Work::reduced_bytes().
  std::optional<int64_t> reduced_bytes;
};

// Launches the reduction of bucket.main_grad over the communicator and returns
// at once; the returned Work's wait() leaves the sum over ranks in `owned`.
// Called in plan order on the thread of backward or, for buckets that backward
// did not fill, on the one that ends the step. Exceptions reach the caller of
// backward() with the bucket named.
using BucketHook =
    std::function<WorkPtr(BucketView& bucket, Communicator& communicator)>;

// The sum, in main_grad's own dtype: 2n(R-1)/R bytes sent by each rank. If rows
// are sparse, only those that are not zero are sent:
// Communicator::all_reduce_rows.
BucketHook all_reduce_hook();

// bf16 on the wire, summed in fp32 and rounded once: half the bytes of
// all_reduce_hook. Gradients keep 8 bits of mantissa, also in a group of one
// rank; those of float64 weights are reduced as they are. Zero rows are sent
// too.
BucketHook bf16_hook();

// fp16 on the wire, as PyTorch's fp16_compress_hook: gradients are divided
// first by the number of ranks and by `divisor` (for sums over many samples),
// so that large ones do not overflow: what is still above 65504 does. Those
// that a mean has divided already (BucketView::is_averaged) are divided by
// neither. Half the bytes of all_reduce_hook; gradients keep 11 bits of
// mantissa, and values below 6e-8 times these numbers are lost. Gradients of
// float64 weights, and all those of a group of one rank, are not rounded.
BucketHook fp16_hook(double divisor = 1);

// int8 on the wire with a float32 scale per 256 gradients of one parameter
// (comm/sums/rounded_sum.h): n(R-1)/2R bytes sent by each rank and 1/64 more,
// with n in float32: a quarter of all_reduce_hook's. What rounding loses is
// added to the next step's gradients (error feedback); this costs one more
// float32 per gradient. New buckets begin without errors. The second half of
// each reduction starts when the step's end is waited for. Gradients of float64
// weights, and all those of a group of one rank, are not rounded. Throws
// UsageError for sharded gradients, and for those on another device than the
// CPU.
BucketHook int8_hook();

// PowerSGD (arXiv:1905.13727). Of each matrix M [n, m], the gradient plus the
// kept error (error feedback), two products are summed over ranks: P = M Q and,
// with P made orthonormal, Q = M^T P. The reduced gradient is P Q^T. Q begins
// the next step (warm start), and M - P Q^T is the next error. Each rank sends
// 8 rank (n + m)(R-1)/R bytes per matrix. Vectors, and matrices for which that
// is more than half of all_reduce_hook's bytes, are reduced as they are, in the
// same collective. Memory: one more float32 per gradient. Throws UsageError for
// a rank below 1 or negative exact_steps. Otherwise as int8_hook().
BucketHook powersgd_hook(const PowerSgdOptions& options = {});

// The sum of this rank's range alone, for sharded gradients: n(R-1)/R bytes
// sent by each rank. `wire` kBFloat16 or kHalf halves them: gradients are
// rounded (kHalf: divided first by the number of ranks and by `divisor`) and
// added in float32. A rank's own are not rounded. Gradients of float64 weights
// are sent as they are.
BucketHook reduce_scatter_hook(
    torch::ScalarType wire = torch::kFloat,
    double divisor = 1);

// The hook above that sums with this sharding and sends `wire`, kFloat,
// kBFloat16 or kHalf: reduce_scatter_hook() or, without sharding,
// all_reduce_hook(), bf16_hook() or fp16_hook(divisor).
BucketHook sum_hook(
    Sharding sharding,
    torch::ScalarType wire = torch::kFloat,
    double divisor = 1);

// Runs `hook`, and then `after` with the reduced bucket: on the thread that
// waits for the bucket (at the step's end or, with divided gradients or a step
// in backward, earlier on backward's), before the gradients are handed over.
// `after` is not called when the reduction failed.
BucketHook then(BucketHook hook, std::function<void(BucketView& bucket)> after);

// Notes each bucket that is launched in `log`, which keeps its memory, then
// does what `inner` does. Used by tests.
BucketHook recording_hook(
    std::shared_ptr<std::vector<BucketView>> log,
    BucketHook inner = all_reduce_hook());

}  // namespace brigade
