#include "brigade/data_parallel/bucket_hook.h"

#include <utility>

namespace brigade {
namespace {

// The bf16 sum widened back into main_grad by whoever waits for it.
class WidenedWork : public Work {
 public:
  WidenedWork(WorkPtr inner, torch::Tensor wire, torch::Tensor main_grad)
      : inner_(std::move(inner)),
        wire_(std::move(wire)),
        main_grad_(std::move(main_grad)) {}

  void wait() override {
    if (!wire_.defined())
      return;
    inner_->wait();
    const torch::NoGradGuard no_grad;
    main_grad_.copy_(wire_);
    wire_.reset();
  }
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }

 private:
  WorkPtr inner_;
  torch::Tensor wire_;
  torch::Tensor main_grad_;
};

}  // namespace

BucketHook all_reduce_hook() {
  return [](BucketView& bucket, Communicator& communicator) {
    return communicator.all_reduce(bucket.main_grad);
  };
}

BucketHook bf16_hook() {
  return [](BucketView& bucket, Communicator& communicator) -> WorkPtr {
    const torch::NoGradGuard no_grad;
    auto wire = bucket.main_grad.to(torch::kBFloat16);
    auto reduction = communicator.all_reduce(wire);
    return std::make_shared<WidenedWork>(
        std::move(reduction), std::move(wire), bucket.main_grad);
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
