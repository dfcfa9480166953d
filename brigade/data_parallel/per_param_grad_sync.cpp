#include "brigade/data_parallel/per_param_grad_sync.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {

PerParamGradSync::PerParamGradSync(
    std::vector<NamedParam> params,
    CommunicatorPtr communicator,
    const GradSyncOptions& options)
    : GradSync(std::move(params), std::move(communicator), options) {
  const bool is_main_grad = options.handover == GradHandover::kMainGrad;
  std::vector<torch::Tensor> main_grads;
  std::vector<torch::Tensor> weights;
  for (size_t i = 0; i < this->params().size(); ++i) {
    const torch::Tensor& param = this->params()[i].tensor;
    GradSegment segment;
    segment.main_grad = torch::zeros(
        {param.numel()}, param.options().dtype(main_grad_dtype(param)));
    if (is_main_grad)
      segment.weight = torch::zeros({param.numel()}, param.options());
    segment.slots = {{static_cast<int>(i), 0, param.numel()}};
    main_grads.push_back(segment.main_grad);
    weights.push_back(segment.weight);
    segments_.push_back(std::move(segment));
  }
  adopt_layout(std::move(main_grads), std::move(weights));
  last_order_ = initial_order(
      BucketOrder::kReverse, static_cast<int>(this->params().size()));
}

void PerParamGradSync::launch_ready(int param) {
  const torch::Tensor& main_grad =
      segments_[static_cast<size_t>(param)].main_grad;
  Launch launch;
  launch.timing.index = param;
  launch.timing.bytes = main_grad.numel() * main_grad.element_size();
  launch.timing.ready_ns = steady_now_ns();
  launch.timing.launched_ns = launch.timing.ready_ns;
  launch.work = communicator()->all_reduce(main_grad);
  launches_.push_back(std::move(launch));
}

void PerParamGradSync::shadow_launches() {
  for (const int param : last_order_)
    launch_ready(param);
}

void PerParamGradSync::wait_all(SyncReport& report) {
  last_order_.clear();
  for (Launch& launch : launches_) {
    launch.timing.wait_begin_ns = steady_now_ns();
    try {
      launch.work->wait();
    } catch (const CommError& error) {
      const auto param = static_cast<size_t>(launch.timing.index);
      launches_.clear();
      throw CommError(fmt::format(
          "[data_parallel] gradient of '{}': {}",
          params()[param].name,
          error.what()));
    }
    launch.timing.wait_end_ns = steady_now_ns();
    launch.timing.finished_ns = launch.work->finished_ns();
    report.buckets.push_back(launch.timing);
    last_order_.push_back(launch.timing.index);
  }
  launches_.clear();
}

}  // namespace brigade
