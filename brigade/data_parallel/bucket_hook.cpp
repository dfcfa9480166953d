#include "brigade/data_parallel/bucket_hook.h"

#include <utility>

namespace brigade {

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

BucketHook recording_hook(
    std::shared_ptr<std::vector<BucketLaunch>> log,
    BucketHook inner) {
  return [log = std::move(log), inner = std::move(inner)](
             BucketView& bucket, Communicator& communicator) {
    log->push_back(
        {bucket.index,
         bucket.main_grad.numel() * bucket.main_grad.element_size(),
         bucket.names});
    return inner(bucket, communicator);
  };
}

}  // namespace brigade
