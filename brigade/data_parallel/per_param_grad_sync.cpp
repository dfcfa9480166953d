#include "brigade/data_parallel/per_param_grad_sync.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/metrics/clock.h"

namespace brigade {

PerParamGradSync::PerParamGradSync(
    std::vector<NamedParam> params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options)
    : all_ranks_(std::move(all_ranks)),
      options_(options),
      params_(
          std::move(params),
          describe(options),
          options.handover == GradHandover::kMainGrad
              ? FlatWeights::kMove
              : FlatWeights::kLeaveAlone,
          all_ranks_),
      uneven_inputs_(*all_ranks_),
      flat_memory_(std::make_shared<FlatMemory>()) {
  if (options_.sharding != Sharding::kNone) {
    throw ConfigError(fmt::format(
        "[data_parallel] sharding = {} needs buckets: per-parameter "
        "synchronisation shards nothing",
        to_string(options_.sharding)));
  }
  for (const NamedParam& param : params_.trainable()) {
    if (param.has_sparse_gradient) {
      throw ConfigError(fmt::format(
          "[data_parallel] parameter '{}' has sparse gradients "
          "(EmbeddingOptions::sparse), which per-parameter synchronisation "
          "does "
          "not reduce; use GradSyncAlgorithm::kBucketed",
          param.name));
    }
  }
  const torch::NoGradGuard no_grad;
  const int count = static_cast<int>(params_.trainable().size());
  for (int i = 0; i < count; ++i) {
    torch::Tensor tensor = params_.trainable()[static_cast<size_t>(i)].tensor;
    const bool is_narrow = tensor.element_size() == 2;
    GradSegment segment;
    segment.main_grad = torch::zeros(
        {tensor.numel()},
        is_narrow ? tensor.options().dtype(torch::kFloat) : tensor.options());
    segment.slots = {{i, 0, tensor.numel()}};
    segment.owned = {.begin = 0, .numel = tensor.numel()};
    segment.group = params_.trainable()[static_cast<size_t>(i)].group;
    const auto main_grad = segment.main_grad.view(tensor.sizes());
    if (is_main_grad()) {
      segment.weight = tensor.detach().clone().contiguous().view({-1});
      tensor.set_data(segment.weight.view(tensor.sizes()));
      tensor.mutable_grad() = main_grad;
    }
    all_.push_back(
        {.tensor = tensor,
         .main_grad = main_grad,
         .dtype = tensor.scalar_type()});
    owned_parts_.push_back(
        {.segment = static_cast<size_t>(i), .numel = tensor.numel()});
    segments_.push_back(std::move(segment));
  }
  flat_memory_->before_step = [this] { check_before_step(); };
  last_order_ = initial_order(BucketOrder::kReverse, count);
  hooks_ = std::make_unique<GradHooks>(
      params_.tensors(),
      GradHooks::Callbacks{
          [this](int param, Arrival arrival) {
            before_accumulate(param, arrival);
          },
          [this](int param) { after_accumulate(param); }});
}

PerParamGradSync::~PerParamGradSync() {
  flat_memory_->before_step = nullptr;
}

double PerParamGradSync::mean_scale() const {
  return options_.reduction == Reduction::kMean ? 1.0 / uneven_inputs_.divisor()
                                                : 1.0;
}

double PerParamGradSync::mean_scale_of(int param) const {
  const ParamGroup& group = params()[static_cast<size_t>(param)].group;
  if (options_.reduction != Reduction::kMean)
    return 1.0;
  if (group.mean_divisor != 0)
    return 1.0 / group.mean_divisor;
  return group.ranks == all_ranks_ ? mean_scale() : 1.0 / group.ranks->size();
}

int PerParamGradSync::ranks_with_data(int param) const {
  const ParamGroup& group = params()[static_cast<size_t>(param)].group;
  return group.ranks == all_ranks_ ? uneven_inputs_.ranks_with_data()
                                   : group.ranks->size();
}

void PerParamGradSync::regroup(
    const CommunicatorPtr& from,
    const CommunicatorPtr& to) {
  if (phase_ == Phase::kAccumulating || phase_ == Phase::kReducing)
    throw_in_step("regroup()");
  check_can_regroup(uneven_inputs_);
  params_.regroup(from, to);
  for (GradSegment& segment : segments_) {
    if (segment.group.ranks == from)
      segment.group.ranks = to;
  }
  if (all_ranks_ == from) {
    all_ranks_ = to;
    uneven_inputs_ = UnevenInputs(*to);
  }
}

double PerParamGradSync::grad_scale() const {
  return is_main_grad() ? mean_scale() : 1.0;
}

void PerParamGradSync::zero_main_grads() {
  if (phase_ == Phase::kFinished)
    reset();
  for (const Param& param : all_)
    param.main_grad.zero_();
}

void PerParamGradSync::begin_step() {
  if (phase_ == Phase::kFinished)
    leave_step();
  if (phase_ != Phase::kIdle) {
    throw_if_leaves_changed();
    return;
  }
  params_.check_unchanged();
  if (is_main_grad())
    take_back_weights();
  show_leaf_gradients();
  uneven_inputs_.begin_step();
  phase_ = Phase::kAccumulating;
}

// Gradients that nobody has used are added to, and reduced with what is added:
// each rank keeps its share of them.
void PerParamGradSync::leave_step() {
  const bool are_used = were_used();
  if (are_used)
    throw_if_kept();
  reset();
  if (are_used)
    return;
  const torch::NoGradGuard no_grad;
  drop_cleared_leaves();
  begin_step();
  for (int i = 0; i < static_cast<int>(all_.size()); ++i) {
    if (is_main_grad() || of(i).tensor.grad().defined())
      keep_share(i);
  }
}

void PerParamGradSync::keep_share(int index) {
  Param& param = of(index);
  take_accumulated(param);
  const double share = (is_main_grad() ? given_scale_ : 1.0) /
                       (mean_scale_of(index) * ranks_with_data(index));
  if (share != 1.0 && has_fused_) {
    throw ConfigError(
        "[data_parallel] backward() was called twice before the optimizer used "
        "the gradients, and fused ops (WeightGrad::kAccumulate) have added to "
        "those that are reduced: put all but the step's last micro-batch under "
        "no_sync(), or clear them with zero_main_grads()");
  }
  param.main_grad.mul_(share);
  if (!is_main_grad())
    show(param);
  param.state = ParamState::kAccumulated;
}

void PerParamGradSync::show(Param& param) {
  param.shown =
      param.main_grad.to(param.dtype, /*non_blocking=*/false, /*copy=*/true);
  param.shown_version = static_cast<int64_t>(param.shown._version());
  param.tensor.mutable_grad() = param.shown;
}

// Of parameters that were given other memory, as torch::load() does.
void PerParamGradSync::take_back_weights() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < all_.size(); ++i) {
    torch::Tensor& tensor = all_[i].tensor;
    const auto weight = segments_[i].weight.view(tensor.sizes());
    if (is_same_memory(tensor, weight) ||
        params_.trainable()[i].is_replaced_by_copy())
      continue;
    weight.copy_(tensor.detach());
    tensor.set_data(weight);
    ++flat_memory_->weights_version;
  }
}

// What .grad shows is what has accumulated, whatever the user did to it.
void PerParamGradSync::take_accumulated(Param& param) {
  torch::Tensor& grad = param.tensor.mutable_grad();
  if (is_main_grad()) {
    if (!grad.defined())
      param.main_grad.zero_();
    else if (!grad.is_same(param.main_grad))
      param.main_grad.copy_(grad);
    grad = param.main_grad;
    return;
  }
  const bool is_unchanged =
      grad.defined() && grad.is_same(param.shown) &&
      static_cast<int64_t>(grad._version()) == param.shown_version;
  if (!grad.defined())
    param.main_grad.zero_();
  else if (!is_unchanged)
    param.main_grad.copy_(grad);
  grad.reset();
  param.shown.reset();
}

void PerParamGradSync::before_accumulate(int index, Arrival arrival) {
  has_fused_ = has_fused_ || arrival == Arrival::kNothing;
  begin_step();
  check_not_ready(index);
  Param& param = of(index);
  if (is_main_grad())
    return;
  const torch::NoGradGuard no_grad;
  if (param.state == ParamState::kAccumulated)
    take_accumulated(param);
  else
    param.tensor.mutable_grad().reset();
}

void PerParamGradSync::after_accumulate(int index) {
  const torch::NoGradGuard no_grad;
  Param& param = of(index);
  torch::Tensor& grad = param.tensor.mutable_grad();
  if (is_main_grad()) {
    take_accumulated(param);
  } else {
    if (param.state == ParamState::kNone)
      param.main_grad.zero_();
    if (grad.defined())
      param.main_grad.add_(grad);
    grad.reset();
    if (accumulate_only_ || is_reached_often())
      show(param);
  }
  if (accumulate_only_) {
    param.state = ParamState::kAccumulated;
    return;
  }
  const bool is_implied = options_.finish == FinishMode::kAtEndOfBackward;
  if (is_reached_often()) {
    begin_reducing();
    param.state = ParamState::kAccumulated;
  } else {
    launch(index);
  }
  if (is_implied && !callback_is_queued_) {
    callback_is_queued_ = true;
    at_end_of_backward([this] {
      callback_is_queued_ = false;
      bool are_all_ready = true;
      for (const Param& other : all_)
        are_all_ready =
            are_all_ready &&
            (other.state == ParamState::kReady ||
             (is_reached_often() && other.state == ParamState::kAccumulated));
      if (phase_ == Phase::kReducing && (are_all_ready || zeros_count()))
        reduce_all();
    });
  }
}

void PerParamGradSync::mark_ready(int index) {
  if (index < 0 || index >= static_cast<int>(all_.size())) {
    throw ConfigError(fmt::format(
        "[data_parallel] mark_ready({}): there are {} parameters",
        index,
        all_.size()));
  }
  if (accumulate_only_)
    return;
  if (phase_ == Phase::kFinished)
    reset();
  begin_step();
  check_not_ready(index);
  const torch::NoGradGuard no_grad;
  if (of(index).state == ParamState::kAccumulated)
    take_accumulated(of(index));
  launch(index);
}

void PerParamGradSync::begin_reducing() {
  if (phase_ != Phase::kAccumulating)
    return;
  phase_ = Phase::kReducing;
  report_ = {};
  report_.ready_ns.resize(all_.size());
  report_.backward_begin_ns = steady_now_ns();
}

void PerParamGradSync::launch(int index) {
  Param& param = of(index);
  begin_reducing();
  const int64_t now_ns = steady_now_ns();
  param.state = ParamState::kReady;
  report_.ready_ns[static_cast<size_t>(index)] = now_ns;
  if (factor_of(index) != 1.0)
    param.main_grad.mul_(factor_of(index));
  if (launches_in_finish())
    return;
  Launch launch;
  launch.timing.index = index;
  launch.timing.bytes =
      param.main_grad.numel() * param.main_grad.element_size();
  launch.timing.ready_ns = now_ns;
  launch.timing.launched_ns = now_ns;
  launch.work = group_of(index).all_reduce(
      segments_[static_cast<size_t>(index)].main_grad);
  launches_.push_back(std::move(launch));
}

void PerParamGradSync::check_not_ready(int index) const {
  if (of(index).state != ParamState::kReady)
    return;
  throw_if_missing();
  throw ConfigError(fmt::format(
      "[data_parallel] parameter '{}' was marked ready twice in one step; put "
      "all but the last micro-batch under no_sync(), or set reach = "
      "GraphReach::kAsInFirstStep where nested backwards share it",
      params()[static_cast<size_t>(index)].name));
}

void PerParamGradSync::throw_if_missing() const {
  std::string names;
  int missing = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].state != ParamState::kNone)
      continue;
    names += (missing++ == 0 ? "" : ", ") + params()[i].name;
  }
  if (missing == 0 || zeros_count())
    return;
  throw ConfigError(fmt::format(
      "[data_parallel] {} of {} parameters got no gradient in this step: {}. "
      "Use them in the loss, freeze them before wrapping, or set "
      "missing_gradient = kZero",
      missing,
      all_.size(),
      names));
}

void PerParamGradSync::finish() {
  if (phase_ == Phase::kFinished) {
    const bool is_second = std::exchange(finish_was_called_, true);
    if (!is_second || !zeros_count())
      return;
    leave_step();
  }
  if (accumulate_only_ && phase_ != Phase::kIdle) {
    throw ConfigError(
        "[data_parallel] finish() under no_sync() alone, which holds the "
        "reduction: run the step's last micro-batch outside no_sync(), and "
        "call finish() after it");
  }
  if (phase_ != Phase::kReducing && !zeros_count()) {
    throw ConfigError(
        "[data_parallel] finish() before any backward() outside no_sync(): "
        "call it once a step, after the last micro-batch's backward()");
  }
  begin_step();
  throw_if_missing();
  reduce_all();
  finish_was_called_ = true;
}

void PerParamGradSync::reduce_all() {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> used;
  for (size_t i = 0; i < all_.size(); ++i) {
    Param& param = all_[i];
    used.push_back(param.state == ParamState::kNone ? 0 : 1);
    if (param.state == ParamState::kAccumulated || is_main_grad()) {
      if (param.state != ParamState::kReady)
        take_accumulated(param);
    } else if (param.state == ParamState::kNone) {
      param.main_grad.zero_();
      param.tensor.mutable_grad().reset();
    }
    if (param.state != ParamState::kReady)
      launch(static_cast<int>(i));
  }
  report_.backward_end_ns = steady_now_ns();
  if (launches_in_finish()) {
    for (const GradSegment& segment : segments_)
      segment.group.ranks->all_reduce(segment.main_grad)->wait();
    used = max_in_groups(used, params());
  } else {
    used.assign(all_.size(), 1);
  }
  wait_all();
  phase_ = Phase::kFinished;
  finish_was_called_ = false;
  call_before_handover();
  hand_over(used);
  step_all();
  begin_use();
  if (bucket_step_)
    note_use();
}

void PerParamGradSync::step_all() {
  if (bucket_step_ == nullptr)
    return;
  bucket_step_->begin();
  for (int param = 0; param < static_cast<int>(all_.size()); ++param)
    bucket_step_->step({.segment = param, .params = {param}});
}

void PerParamGradSync::wait_all() {
  last_order_.clear();
  for (Launch& launch : launches_) {
    launch.timing.wait_begin_ns = steady_now_ns();
    try {
      launch.work->wait();
    } catch (const CommError& error) {
      const auto param = static_cast<size_t>(launch.timing.index);
      throw CommError(fmt::format(
          "[data_parallel] gradient of '{}': {}",
          params()[param].name,
          error.what()));
    }
    launch.timing.wait_end_ns = steady_now_ns();
    launch.timing.finished_ns = launch.work->finished_ns();
    report_.buckets.push_back(launch.timing);
    last_order_.push_back(launch.timing.index);
  }
  launches_.clear();
}

void PerParamGradSync::hand_over(const std::vector<int64_t>& used) {
  given_scale_ = mean_scale();
  if (is_main_grad())
    return;
  for (size_t i = 0; i < all_.size(); ++i) {
    Param& param = all_[i];
    if (used[i] == 0)
      continue;
    param.main_grad.mul_(mean_scale_of(static_cast<int>(i)));
    param.tensor.mutable_grad() = is_16_bit(param.dtype)
                                      ? param.main_grad.to(param.dtype)
                                      : param.main_grad.variable_data();
    param.shown = param.tensor.grad();
    param.shown_version = static_cast<int64_t>(param.shown._version());
  }
}

void PerParamGradSync::reset() {
  for (const Launch& launch : launches_) {
    try {
      launch.work->wait();
    } catch (const CommError&) {
      // Reported to whoever started it; here the step is being given up.
    }
  }
  launches_.clear();
  writes_.end();
  for (Param& param : all_)
    param.state = ParamState::kNone;
  callback_is_queued_ = false;
  phase_ = Phase::kIdle;
}

int PerParamGradSync::join() {
  if (!uneven_inputs_.is_allowed()) {
    throw ConfigError(
        "[data_parallel] join() needs uneven inputs: call "
        "allow_uneven_inputs() on every rank before the first step");
  }
  if (phase_ == Phase::kAccumulating || phase_ == Phase::kReducing) {
    // Its weights are replaced below.
    const BucketStepPtr step = std::exchange(bucket_step_, nullptr);
    reduce_all();
    bucket_step_ = step;
  }
  reset();
  const torch::NoGradGuard no_grad;
  while (uneven_inputs_.begin_shadow_step()) {
    zero_main_grads();
    if (launches_in_finish()) {
      for (const GradSegment& segment : segments_)
        all_ranks_->all_reduce(segment.main_grad)->wait();
      Agreement(*all_ranks_).max(std::vector<int64_t>(all_.size(), 0));
      continue;
    }
    for (const int param : last_order_) {
      all_ranks_->all_reduce(segments_[static_cast<size_t>(param)].main_grad)
          ->wait();
    }
  }
  zero_main_grads();
  const int last = uneven_inputs_.last_rank_with_data();
  params_.broadcast_from(last);
  ++flat_memory_->weights_version;
  return last;
}

}  // namespace brigade
