#include "brigade/data_parallel/bucketed_grad_sync.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// Of all parameters of a dtype, bucket after bucket: what lies side by side
// does so across the end of a bucket (linear() makes one product of it).
struct FlatMemory {
  int64_t numel = 0;
  int64_t used = 0;
  torch::Tensor main_grad;
  torch::Tensor weight;  // kMainGrad only

  // The next bucket's part.
  GradSegment take(const PlannedBucket& bucket) {
    GradSegment segment;
    segment.main_grad = main_grad.narrow(0, used, bucket.numel);
    if (weight.defined())
      segment.weight = weight.narrow(0, used, bucket.numel);
    segment.slots = bucket.slots;
    used += bucket.numel;
    return segment;
  }
};

}  // namespace

BucketedGradSync::BucketedGradSync(
    std::vector<NamedParam> params,
    CommunicatorPtr communicator,
    const GradSyncOptions& options)
    : GradSync(std::move(params), std::move(communicator), options),
      order_is_final_(options.order != BucketOrder::kObserved) {
  lay_out(
      initial_order(options.order, static_cast<int>(this->params().size())));
}

void BucketedGradSync::lay_out(const std::vector<int>& order) {
  const auto descriptions = bucket_params();
  plan_ = plan_buckets(
      descriptions,
      order,
      {.capacity_bytes = options().bucket_capacity_bytes,
       .first_bucket_bytes = options().first_bucket_bytes,
       .last_bucket_bytes = options().last_bucket_bytes,
       .ranks = communicator()->size()});
  const bool is_main_grad = options().handover == GradHandover::kMainGrad;
  std::vector<torch::Tensor> main_grads(params().size());
  std::vector<torch::Tensor> weights(params().size());
  bucket_of_.resize(params().size());
  std::vector<Bucket> buckets;
  std::vector<GradSegment> segments;
  std::map<std::string, FlatMemory> memory;  // by dtype
  for (const PlannedBucket& planned : plan_.buckets)
    memory[planned.dtype].numel += planned.numel;
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const PlannedBucket& planned = plan_.buckets[b];
    FlatMemory& flat = memory[planned.dtype];
    if (!flat.main_grad.defined()) {
      const auto first = static_cast<size_t>(planned.slots.front().param);
      const torch::Tensor& example = params()[first].tensor;
      flat.main_grad = torch::zeros(
          {flat.numel}, example.options().dtype(main_grad_dtype(example)));
      if (is_main_grad)
        flat.weight = torch::zeros({flat.numel}, example.options());
    }
    GradSegment segment = flat.take(planned);
    BucketView view{
        static_cast<int>(b),
        static_cast<int>(plan_.buckets.size()),
        segment.main_grad,
        {},
        planned.sparse_row_numel};
    for (const BucketSlot& slot : planned.slots) {
      const auto param = static_cast<size_t>(slot.param);
      bucket_of_[param] = b;
      main_grads[param] =
          segment.main_grad.narrow(0, slot.offset_numel, slot.numel);
      if (is_main_grad)
        weights[param] =
            segment.weight.narrow(0, slot.offset_numel, slot.numel);
      view.names.push_back(params()[param].name);
    }
    buckets.emplace_back(planned, std::move(view));
    segments.push_back(std::move(segment));
  }
  adopt_layout(std::move(main_grads), std::move(weights));
  buckets_ = std::move(buckets);
  segments_ = std::move(segments);
  next_to_launch_ = 0;
}

void BucketedGradSync::launch_ready(int param) {
  buckets_[bucket_of_[static_cast<size_t>(param)]].mark_ready();
  // In plan order: a full bucket behind one that still fills must wait, or
  // ranks whose backwards differ would pair different buckets.
  while (next_to_launch_ < buckets_.size() &&
         buckets_[next_to_launch_].state() == BucketState::kFull) {
    buckets_[next_to_launch_].launch(options().hook, *communicator());
    ++next_to_launch_;
  }
}

void BucketedGradSync::shadow_launches() {
  for (Bucket& bucket : buckets_)
    bucket.launch_as_is(options().hook, *communicator());
}

void BucketedGradSync::wait_all(SyncReport& report) {
  for (Bucket& bucket : buckets_) {
    bucket.wait();
    report.buckets.push_back(bucket.timing());
  }
}

void BucketedGradSync::after_finish() {
  if (order_is_final_)
    return;
  order_is_final_ = true;
  // All ranks must plan alike, so all take the order of the first that saw one:
  // a rank that had no data in this step saw none.
  auto order =
      torch::zeros({static_cast<int64_t>(params().size())}, torch::kLong);
  std::copy(
      ready_order().begin(), ready_order().end(), order.data_ptr<int64_t>());
  communicator()->broadcast(order, first_rank_with_data())->wait();
  const int64_t* indices = order.data_ptr<int64_t>();
  lay_out(std::vector<int>(indices, indices + order.numel()));
}

void BucketedGradSync::on_reset() {
  for (Bucket& bucket : buckets_)
    bucket.reset();
  next_to_launch_ = 0;
}

}  // namespace brigade
