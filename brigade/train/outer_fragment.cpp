#include "brigade/train/outer_fragment.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/ops/adamw.h"
#include "brigade/ops/split_master.h"

namespace brigade {
namespace {

torch::Tensor master_of(const Param& param, ops::Kernels kernels) {
  const torch::Tensor low = param.state(kMasterLow);
  return low.defined() ? ops::join_master(param.tensor, low, kernels)
                       : param.tensor;
}

void set_master(
    const Param& param,
    const torch::Tensor& master,
    ops::Kernels kernels) {
  if (const torch::Tensor low = param.state(kMasterLow); low.defined())
    ops::split_master(master, param.tensor, low, kernels);
  else
    torch::Tensor(param.tensor).copy_(master);
}

}  // namespace

OuterFragment::OuterFragment(
    const FragmentParams& params,
    const OuterFragmentOptions& options,
    const ProcessMesh& mesh,
    CommunicatorPtr replicas,
    SequentialWorker& worker)
    : options_(options),
      mesh_(mesh),
      replicas_(std::move(replicas)),
      worker_(worker),
      is_first_replica_(replicas_->rank() == 0) {
  std::vector<FlatRange> ranges;
  for (const Param& param : params) {
    ranges.push_back({numel_, param.tensor.numel()});
    const bool is_new = ranges_.emplace(param.name, ranges.back()).second;
    BRIGADE_ASSERT(is_new, "'{}' twice", param.name);
    numel_ += param.tensor.numel();
  }
  if (!is_first_replica_)
    return;
  common_ = torch::zeros(
      {numel_}, params.front().tensor.options().dtype(torch::kFloat));
  momentum_ = torch::zeros_like(common_);
  pending_ = torch::zeros_like(common_);
  if (options_.wire != WireFormat::kFp32) {
    errors_ = torch::zeros_like(common_);
    rounded_.emplace(options_.wire, ranges, *mesh.between_groups());
  }
  restart(params);
}

OuterFragment::~OuterFragment() {
  if (exchange_.valid())
    exchange_.wait();
}

torch::Tensor OuterFragment::slot(const torch::Tensor& flat, const Param& param)
    const {
  const auto range = ranges_.find(param.name);
  BRIGADE_ASSERT(range != ranges_.end(), "'{}' is of another one", param.name);
  return flat.narrow(0, range->second.begin, range->second.numel)
      .view(param.tensor.sizes());
}

void OuterFragment::restart(const FragmentParams& params) {
  if (!is_first_replica_)
    return;
  const torch::NoGradGuard no_grad;
  await_exchange();
  is_under_way_ = false;
  for (const Param& param : params)
    slot(common_, param).copy_(master_of(param, options_.kernels));
  momentum_.zero_();
  pending_.zero_();
  if (errors_.defined())
    errors_.zero_();
}

void OuterFragment::exchange() {
  const torch::NoGradGuard no_grad;
  Communicator& groups = *mesh_.between_groups();
  if (!rounded_) {
    groups.all_reduce(pending_)->wait_on_host();
  } else if (is_left_out_) {
    // Its errors are of earlier exchanges, and of the sums that it rounds.
    const torch::Tensor of_sums = torch::zeros_like(errors_);
    exchange_rounded(of_sums);
    errors_.add_(of_sums);
  } else {
    exchange_rounded(errors_);
  }
  pending_.div_(groups_in_mean_);
}

void OuterFragment::exchange_rounded(torch::Tensor errors) {
  rounded_->scatter(pending_, std::move(errors))->wait_on_host();
  rounded_->gather()->wait_on_host();
  rounded_->finish();
}

double OuterFragment::squared_change(const FragmentParams& params) const {
  if (!is_first_replica_)
    return 0;
  const torch::NoGradGuard no_grad;
  torch::Tensor sum;
  for (const Param& param : params) {
    torch::Tensor squares = ops::sum_of_squares(
        (slot(common_, param) - master_of(param, options_.kernels))
            .contiguous(),
        options_.kernels);
    if (!param.is_counted_here())
      squares *= 0;  // NaN where they are not finite
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum.defined() ? sum.item<double>() : 0;
}

void OuterFragment::send(
    const FragmentParams& params,
    const std::vector<bool>& left_out) {
  const torch::NoGradGuard no_grad;
  is_under_way_ = true;
  const auto group = static_cast<size_t>(mesh_.replica_group());
  is_left_out_ = !left_out.empty() && left_out[group];
  groups_in_mean_ = std::max(
      1,
      mesh_.replica_groups() -
          static_cast<int>(std::count(left_out.begin(), left_out.end(), true)));
  if (!is_first_replica_)
    return;
  for (const Param& param : params) {
    auto change = slot(pending_, param);
    torch::sub_out(
        change, slot(common_, param), master_of(param, options_.kernels));
  }
  if (is_left_out_)
    pending_.zero_();
  auto task =
      std::make_shared<std::packaged_task<void()>>([this] { exchange(); });
  exchange_ = task->get_future();
  worker_.submit([task] { (*task)(); });
}

void OuterFragment::await_exchange() {
  if (exchange_.valid())
    exchange_.get();
}

void OuterFragment::align_tied(const FragmentParams& params) {
  Communicator& ends = *mesh_.embedding();
  for (const Param& param : params) {
    if (!param.row->tied_head.empty() && ends.size() > 1)
      ends.broadcast(slot(common_, param), /*root=*/0)->wait();
  }
}

void OuterFragment::merge(const FragmentParams& params) {
  merge(params, options_.optimizer, is_left_out_ ? 0 : options_.alpha);
}

void OuterFragment::average(const FragmentParams& params) {
  merge(params, {.lr = 1, .momentum = 0}, /*alpha=*/0);
  if (is_first_replica_)
    momentum_.zero_();
}

void OuterFragment::merge(
    const FragmentParams& params,
    const OuterOptimizerOptions& optimizer,
    double alpha) {
  if (!std::exchange(is_under_way_, false))
    return;
  const torch::NoGradGuard no_grad;
  torch::Tensor merged;
  if (is_first_replica_) {
    await_exchange();
    outer_step(optimizer, common_, momentum_, pending_);
    align_tied(params);
    merged = common_.clone();
    if (alpha > 0) {
      for (const Param& param : params)
        slot(merged, param).lerp_(master_of(param, options_.kernels), alpha);
    }
  } else {
    merged = torch::empty(
        {numel_}, params.front().tensor.options().dtype(torch::kFloat));
  }
  replicas_->broadcast(merged, /*root=*/0)->wait();
  for (const Param& param : params)
    set_master(param, slot(merged, param), options_.kernels);
}

std::vector<State> OuterFragment::states(const Param& param) {
  if (!is_first_replica_)
    return {};
  await_exchange();
  std::vector<State> states = {
      {kOuterCommon, slot(common_, param)},
      {kOuterMomentum, slot(momentum_, param)},
      {kOuterPending, slot(pending_, param)}};
  if (errors_.defined())
    states.push_back({kOuterErrors, slot(errors_, param)});
  return states;
}

}  // namespace brigade
