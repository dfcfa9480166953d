#include <memory>
#include <utility>

#include "brigade/comm/rounded_sum.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/error_feedback.h"
#include "brigade/data_parallel/staged_work.h"

namespace brigade {
namespace {

// Of one bucket, from step to step.
struct RoundedBucket {
  RoundedBucket(const BucketView& bucket, Communicator& communicator)
      : sum(WireFormat::kInt8, ranges_of(bucket), communicator),
        errors(torch::zeros_like(bucket.main_grad)) {}

  static std::vector<WireRange> ranges_of(const BucketView& bucket) {
    std::vector<WireRange> ranges;
    for (size_t i = 0; i < bucket.grads.size(); ++i)
      ranges.push_back({offset_in_bucket(bucket, i), bucket.grads[i].numel()});
    return ranges;
  }

  RoundedSum sum;
  torch::Tensor errors;  // as main_grad
};

class Int8Reduction {
 public:
  WorkPtr launch(BucketView& bucket, Communicator& communicator) {
    refuse_sharding(bucket, "int8_hook()");
    if (bucket.main_grad.scalar_type() != torch::kFloat)
      return communicator.all_reduce(bucket.main_grad);
    const auto state = states_.of(bucket, [&] {
      return std::make_shared<RoundedBucket>(bucket, communicator);
    });
    return reductions_.add(
        {.first = state->sum.scatter(bucket.main_grad, state->errors),
         .second = [state] { return state->sum.gather(); },
         .last = [state] { state->sum.finish(); },
         .reduced_bytes = state->sum.wire_bytes()});
  }

 private:
  StateOfBuckets<RoundedBucket> states_;
  StagedReductions reductions_;
};

}  // namespace

BucketHook int8_hook() {
  return [reduction = std::make_shared<Int8Reduction>()](
             BucketView& bucket, Communicator& communicator) {
    return reduction->launch(bucket, communicator);
  };
}

}  // namespace brigade
