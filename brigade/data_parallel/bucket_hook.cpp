#include "brigade/data_parallel/bucket_hook.h"

#include <utility>
#include <vector>

namespace brigade {

namespace {

// Makes the thread that waits for `work` call `then` afterwards, without
// autograd. `then` computes on tensors of `device`.
WorkPtr
followed_by(WorkPtr work, torch::Device device, std::function<void()> then) {
  return join_works(
      {.works = {std::move(work)},
       .then =
           [then = std::move(then)] {
             const torch::NoGradGuard no_grad;
             then();
           },
       .device = device,
       .reduced_bytes = {}});
}

// Reduces a bucket with 16 bits per element sent. Sharded gradients were never
// divided by a mean before (BucketView::is_averaged is false).
WorkPtr scatter_rounded(
    const BucketView& bucket,
    Communicator& communicator,
    torch::ScalarType wire,
    double divisor) {
  const torch::NoGradGuard no_grad;
  const int64_t ranks = communicator.size();
  const double scale =
      wire == torch::kHalf ? divisor * static_cast<double>(ranks) : 1.0;
  const auto sent =
      (scale == 1.0 ? bucket.main_grad : bucket.main_grad / scale).to(wire);
  const auto received = torch::empty_like(sent);
  return followed_by(
      communicator.all_to_all(received, sent),
      sent.device(),
      [received,
       sent,
       scale,
       ranks,
       rank = communicator.rank(),
       owned = bucket.owned]() mutable {
        const auto parts = received.view({ranks, -1});
        for (int64_t i = 0; i < ranks; ++i) {
          if (i != rank)
            owned.add_(parts[i], scale);
        }
      });
}

}  // namespace

BucketHook all_reduce_hook() {
  return [](BucketView& bucket, Communicator& communicator) {
    const int64_t row = bucket.sparse_row_numel;
    if (row == 0)
      return communicator.all_reduce(bucket.main_grad);
    const int64_t rows = bucket.main_grad.numel() / row;
    return communicator.all_reduce_rows(
        bucket.main_grad.narrow(0, 0, rows * row).view({rows, row}));
  };
}

BucketHook bf16_hook() {
  return [](BucketView& bucket, Communicator& communicator) {
    // Gradients of float64 weights keep their precision.
    if (bucket.main_grad.scalar_type() != torch::kFloat)
      return communicator.all_reduce(bucket.main_grad);
    return communicator.all_reduce_as_bf16(bucket.main_grad);
  };
}

BucketHook fp16_hook(double divisor) {
  return [divisor](BucketView& bucket, Communicator& communicator) -> WorkPtr {
    if (bucket.main_grad.scalar_type() != torch::kFloat ||
        communicator.size() == 1)
      return communicator.all_reduce(bucket.main_grad);
    const torch::NoGradGuard no_grad;
    const double scale = bucket.is_averaged ? 1 : divisor * communicator.size();
    if (scale != 1)
      bucket.main_grad.div_(scale);
    const auto wire = bucket.main_grad.to(torch::kHalf);
    return followed_by(
        communicator.all_reduce(wire),
        wire.device(),
        [wire, scale, main_grad = bucket.main_grad]() mutable {
          main_grad.copy_(wire);
          if (scale != 1)
            main_grad.mul_(scale);
        });
  };
}

BucketHook reduce_scatter_hook(torch::ScalarType wire, double divisor) {
  return [wire, divisor](
             BucketView& bucket, Communicator& communicator) -> WorkPtr {
    const int64_t bytes =
        bucket.main_grad.numel() * bucket.main_grad.element_size();
    bucket.reduced_bytes = bytes / 2;  // one of an all-reduce's two exchanges
    if (wire == torch::kFloat ||
        bucket.main_grad.scalar_type() != torch::kFloat)
      return communicator.reduce_scatter(bucket.owned, bucket.main_grad);
    bucket.reduced_bytes = bytes / 4;
    return scatter_rounded(bucket, communicator, wire, divisor);
  };
}

BucketHook sum_hook(Sharding sharding, torch::ScalarType wire, double divisor) {
  if (sharding != Sharding::kNone)
    return reduce_scatter_hook(wire, divisor);
  if (wire == torch::kFloat)
    return all_reduce_hook();
  return wire == torch::kBFloat16 ? bf16_hook() : fp16_hook(divisor);
}

BucketHook then(
    BucketHook hook,
    std::function<void(BucketView& bucket)> after) {
  return [hook = std::move(hook), after = std::move(after)](
             BucketView& bucket, Communicator& communicator) -> WorkPtr {
    auto work = hook(bucket, communicator);
    if (work == nullptr)
      return work;
    return followed_by(
        std::move(work), bucket.main_grad.device(), [after, bucket]() mutable {
          after(bucket);
        });
  };
}

BucketHook recording_hook(
    std::shared_ptr<std::vector<BucketView>> log,
    BucketHook inner) {
  return [log = std::move(log), inner = std::move(inner)](
             BucketView& bucket, Communicator& communicator) {
    log->push_back(bucket);
    return inner(bucket, communicator);
  };
}

}  // namespace brigade
