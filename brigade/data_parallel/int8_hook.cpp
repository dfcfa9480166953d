#include <memory>
#include <optional>
#include <utility>

#include "brigade/comm/sums/rounded_sum.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/error_feedback.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/data_parallel/staged_work.h"

namespace brigade {
namespace {

// Error feedback of one bucket, kept from step to step.
struct RoundedBucket : KeptOfBucket {
  explicit RoundedBucket(const BucketView& bucket)
      : errors(torch::zeros_like(bucket.main_grad)) {
    for (size_t i = 0; i < bucket.grads.size(); ++i)
      kept.push_back(
          {"errors." + bucket.names[i],
           errors.narrow(
               0, offset_in_bucket(bucket, i), bucket.grads[i].numel())});
  }

  // Follows regroup() to other ranks; the errors are this rank's own and stay.
  void sum_over(Communicator& communicator) {
    if (group == &communicator && ranks == communicator.size())
      return;
    group = &communicator;
    ranks = communicator.size();
    std::vector<FlatRange> ranges;
    for (const State& each : kept)
      ranges.push_back({each.tensor.storage_offset(), each.tensor.numel()});
    sum.emplace(WireFormat::kInt8, ranges, communicator);
  }

  Communicator* group = nullptr;
  int ranks = 0;  // of it: another one may have its address
  std::optional<RoundedSum> sum;
  torch::Tensor errors;  // as main_grad
};

class Int8Reduction {
 public:
  explicit Int8Reduction(HookMemoryPtr memory) : states_(std::move(memory)) {}

  WorkPtr launch(BucketView& bucket, Communicator& communicator) {
    check_can_compress(bucket, "int8_hook()");
    // Nothing is sent in a group of one, and nothing lost.
    if (communicator.size() == 1 ||
        bucket.main_grad.scalar_type() != torch::kFloat)
      return communicator.all_reduce(bucket.main_grad);
    const auto state = states_.of(bucket);
    state->sum_over(communicator);
    return reductions_.add(
        communicator,
        {.first = state->sum->scatter(bucket.main_grad, state->errors),
         .second = [state] { return state->sum->gather(); },
         .last = [state] { state->sum->finish(); },
         .reduced_bytes = state->sum->wire_bytes()});
  }

 private:
  StateOfBuckets<RoundedBucket> states_;
  StagedReductions reductions_;
};

}  // namespace

BucketHook int8_hook() {
  return int8_hook(nullptr);
}

BucketHook int8_hook(HookMemoryPtr memory) {
  return [reduction = std::make_shared<Int8Reduction>(std::move(memory))](
             BucketView& bucket, Communicator& communicator) {
    return reduction->launch(bucket, communicator);
  };
}

}  // namespace brigade
