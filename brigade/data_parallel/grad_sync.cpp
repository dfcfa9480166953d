#include "brigade/data_parallel/grad_sync.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/data_parallel/replica_check.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

bool is_16_bit(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 || dtype == torch::kHalf;
}

// The bits of two elements: cheap to keep, and a step changes some tensor's. 0
// if both are zero.
uint64_t probe(const torch::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.is_contiguous())
    return 0;
  const auto* bytes = static_cast<const char*>(tensor.data_ptr());
  const auto element =
      std::min(static_cast<size_t>(tensor.element_size()), sizeof(uint64_t));
  uint64_t first = 0;
  uint64_t last = 0;
  std::memcpy(&first, bytes, element);
  std::memcpy(&last, bytes + tensor.nbytes() - element, element);
  return 31 * first + last;
}

void check_params(const std::vector<NamedParam>& params) {
  for (const NamedParam& param : params) {
    if (!param.tensor.is_cpu()) {
      throw ConfigError(fmt::format(
          "[data_parallel] parameter '{}' is on device {}, but its "
          "communicator moves tensors of the CPU; move the module before "
          "wrapping it",
          param.name,
          param.tensor.device().str()));
    }
    const auto dtype = param.tensor.scalar_type();
    if (!at::isFloatingType(dtype)) {
      throw ConfigError(fmt::format(
          "[data_parallel] parameter '{}' has dtype {}: only floating-point "
          "parameters have gradients",
          param.name,
          c10::toString(dtype)));
    }
    if (param.is_row_sparse && param.tensor.dim() != 2) {
      throw ConfigError(fmt::format(
          "[data_parallel] parameter '{}' is declared row-sparse, but has {} "
          "dims; only a matrix has rows",
          param.name,
          param.tensor.dim()));
    }
  }
}

}  // namespace

GradSync::GradSync(
    std::vector<NamedParam> params,
    CommunicatorPtr communicator,
    const GradSyncOptions& options)
    : communicator_(std::move(communicator)),
      options_(options),
      ranks_with_data_(communicator_->size()) {
  check_params(params);
  check_replicas_alike(params, *communicator_);
  for (NamedParam& param : params) {
    auto& list = param.tensor.requires_grad() ? params_ : frozen_;
    list.push_back(std::move(param));
  }
  if (params_.empty()) {
    throw ConfigError(
        "[data_parallel] nothing to synchronise: the module has no parameter "
        "that requires a gradient; register its parameters and turn "
        "requires_grad on before wrapping it");
  }
  std::vector<std::string> names;
  std::vector<torch::Tensor> tensors;
  for (const NamedParam& param : params_) {
    names.push_back(param.name);
    tensors.push_back(param.tensor);
    dtypes_.push_back(param.tensor.scalar_type());
  }
  hooks_ = std::make_unique<GradHooks>(
      names,
      tensors,
      GradHooks::Callbacks{
          [this](int param) { before_accumulate(param); },
          [this](int param) { after_accumulate(param); }});
  for (const NamedParam& param : frozen_)
    tensors.push_back(param.tensor);
  broadcast_from_rank_0(tensors, *communicator_);
  touched_.assign(params_.size(), 0);
  ready_.assign(params_.size(), 0);
}

GradSync::~GradSync() = default;

torch::ScalarType GradSync::main_grad_dtype(const torch::Tensor& param) {
  return is_16_bit(param.scalar_type()) ? torch::kFloat : param.scalar_type();
}

std::vector<BucketParam> GradSync::bucket_params() const {
  std::vector<BucketParam> result;
  result.reserve(params_.size());
  for (const NamedParam& param : params_) {
    result.push_back(
        {.name = param.name,
         .numel = param.tensor.numel(),
         .dtype = c10::toString(param.tensor.scalar_type()),
         .grad_element_bytes = static_cast<int64_t>(
             c10::elementSize(main_grad_dtype(param.tensor))),
         .sparse_row_numel = param.is_row_sparse ? param.tensor.size(1) : 0});
  }
  return result;
}

void GradSync::adopt_layout(
    std::vector<torch::Tensor> main_grads,
    std::vector<torch::Tensor> weights) {
  const torch::NoGradGuard no_grad;
  const bool is_main_grad = options_.handover == GradHandover::kMainGrad;
  for (size_t i = 0; i < params_.size(); ++i) {
    torch::Tensor& param = params_[i].tensor;
    main_grads[i] = main_grads[i].view(param.sizes());
    if (!main_grads_.empty())
      main_grads[i].copy_(main_grads_[i]);
    if (!is_main_grad)
      continue;
    auto weight = weights[i].view(param.sizes());
    weight.copy_(param.detach());
    param.set_data(weight);
    param.mutable_grad() = main_grads[i];
  }
  main_grads_ = std::move(main_grads);
  addresses_.clear();
  for (const NamedParam& param : params_)
    addresses_.push_back(param.tensor.data_ptr());
  ++layout_version_;
}

int GradSync::param_index(const std::string& name) const {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].name == name)
      return static_cast<int>(i);
  }
  return -1;
}

double GradSync::mean_scale() const {
  return options_.reduction == Reduction::kMean ? 1.0 / ranks_with_data_ : 1.0;
}

double GradSync::grad_scale() const {
  return options_.handover == GradHandover::kMainGrad ? mean_scale() : 1.0;
}

// Where the mean's division happens, so that it never costs a pass of its own:
// in the optimizer (kMainGrad), in the conversion to 16 bits, or else as each
// gradient is added.
double GradSync::accumulation_scale(int param) const {
  const bool divides_later = options_.handover == GradHandover::kMainGrad ||
                             is_16_bit(dtypes_[static_cast<size_t>(param)]);
  return divides_later ? 1.0 : mean_scale();
}

void GradSync::zero_main_grads() {
  for (const GradSegment& segment : segments())
    segment.main_grad.zero_();
}

void GradSync::check_unchanged() const {
  for (size_t i = 0; i < params_.size(); ++i) {
    const NamedParam& param = params_[i];
    if (!param.tensor.requires_grad()) {
      throw ConfigError(fmt::format(
          "[data_parallel] requires_grad of '{}' was turned off after "
          "wrapping; freeze parameters before wrapping, or wrap again",
          param.name));
    }
    if (param.tensor.scalar_type() != dtypes_[i]) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' was {} when it was wrapped and is {} now; "
          "convert the module before wrapping it",
          param.name,
          c10::toString(dtypes_[i]),
          c10::toString(param.tensor.scalar_type())));
    }
    if (options_.handover == GradHandover::kMainGrad &&
        param.tensor.data_ptr() != addresses_[i]) {
      throw ConfigError(fmt::format(
          "[data_parallel] '{}' was given new memory after wrapping, which the "
          "optimizer would not see; copy values in place instead",
          param.name));
    }
  }
  for (const NamedParam& param : frozen_) {
    if (param.tensor.requires_grad()) {
      throw ConfigError(fmt::format(
          "[data_parallel] requires_grad of '{}' was turned on after "
          "wrapping; wrap again to synchronise it",
          param.name));
    }
  }
}

// The user neither stepped nor cleared what the last backward handed over.
bool GradSync::are_gradients_unused() const {
  if (options_.handover == GradHandover::kMainGrad) {
    // Whoever reads main_grads clears them. Those that a fused op has added to
    // in the meantime differ.
    for (size_t i = 0; i < reduced_probes_.size(); ++i) {
      if (reduced_probes_[i] != 0 &&
          probe(main_grads_[i]) == reduced_probes_[i])
        return true;
    }
    return false;
  }
  for (size_t i = 0; i < handed_over_.size(); ++i) {
    const torch::Tensor& tensor = params_[i].tensor;
    const HandedOver& was = handed_over_[i];
    if (!tensor.grad().defined() || tensor.grad().data_ptr() != was.grad ||
        tensor.grad()._version() != was.grad_version ||
        tensor._version() != was.param_version ||
        probe(tensor) != was.param_probe)
      return false;
  }
  return !handed_over_.empty();
}

void GradSync::begin_step() {
  check_unchanged();
  if (uneven_inputs_)
    count_ranks_with_data(1);
  phase_ = Phase::kAccumulating;
}

void GradSync::begin_after_finished(int param) {
  const bool was_implied = options_.finish == FinishMode::kAtEndOfBackward;
  if (was_implied && are_gradients_unused()) {
    throw ConfigError(fmt::format(
        "[data_parallel] backward() was called twice before the optimizer "
        "used the gradients ('{}'); put all but the step's last micro-batch "
        "under no_sync(), or call reset() to drop them",
        params_[static_cast<size_t>(param)].name));
  }
  reset();
}

void GradSync::before_accumulate(int param) {
  if (phase_ == Phase::kFinished)
    begin_after_finished(param);
  if (phase_ == Phase::kIdle)
    begin_step();
  // AccumulateGrad then keeps the incoming gradient itself instead of adding
  // it to what the last step handed over.
  if (options_.handover == GradHandover::kParamDtype)
    params_[static_cast<size_t>(param)].tensor.mutable_grad().reset();
}

void GradSync::after_accumulate(int param) {
  if (phase_ == Phase::kFinished)  // a fused op: before_accumulate() was not
    begin_after_finished(param);
  if (phase_ == Phase::kIdle)
    begin_step();
  const torch::NoGradGuard no_grad;
  const auto i = static_cast<size_t>(param);
  torch::Tensor& grad = params_[i].tensor.mutable_grad();
  torch::Tensor& main_grad = main_grads_[i];
  const bool is_in_place =
      grad.defined() && grad.data_ptr() == main_grad.data_ptr();
  if (!is_in_place) {
    const double scale = accumulation_scale(param);
    const bool is_first =
        touched_[i] == 0 && options_.handover == GradHandover::kParamDtype;
    if (is_first && !grad.defined()) {
      main_grad.zero_();
    } else if (is_first && scale == 1.0) {
      main_grad.copy_(grad);
    } else if (is_first) {
      at::mul_out(main_grad, grad, at::scalar_tensor(scale, grad.options()));
    } else if (grad.defined()) {
      main_grad.add_(grad, scale);
    }
    if (options_.handover == GradHandover::kMainGrad)
      grad = main_grad;
    else
      grad.reset();
  }
  touched_[i] = 1;
  mark_ready(param);
}

void GradSync::mark_ready(int param) {
  if (accumulate_only_)
    return;
  const auto i = static_cast<size_t>(param);
  if (phase_ == Phase::kFinished)
    reset();
  if (phase_ == Phase::kIdle)
    begin_step();
  if (phase_ == Phase::kAccumulating) {
    phase_ = Phase::kReducing;
    report_ = {};
    report_.ready_ns.resize(params_.size());
    report_.backward_begin_ns = steady_now_ns();
    if (options_.finish == FinishMode::kAtEndOfBackward)
      at_end_of_backward([this] { finish(); });
  }
  if (ready_[i] != 0) {
    throw ConfigError(fmt::format(
        "[data_parallel] parameter '{}' was marked ready twice in one step. "
        "Either backward() ran twice before finish() (put all but the last "
        "micro-batch under no_sync()), or one backward reaches the parameter "
        "through a nested backward (activation checkpointing that shares it)",
        params_[i].name));
  }
  ready_[i] = 1;
  touched_[i] = 1;
  ready_order_.push_back(param);
  report_.ready_ns[i] = steady_now_ns();
  launch_ready(param);
}

void GradSync::fill_missing() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (touched_[i] == 0)
      missing.push_back(params_[i].name);
  }
  if (!missing.empty() &&
      options_.missing_gradient == MissingGradient::kError) {
    const size_t shown = std::min<size_t>(missing.size(), 8);
    throw ConfigError(fmt::format(
        "[data_parallel] {} of {} parameters got no gradient in this step: "
        "{}{}. Use them in the loss, freeze them before wrapping, or set "
        "missing_gradient = kZero",
        missing.size(),
        params_.size(),
        fmt::join(missing.begin(), missing.begin() + shown, ", "),
        shown < missing.size() ? ", ..." : ""));
  }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (ready_[i] != 0)
      continue;
    if (touched_[i] == 0 && options_.handover == GradHandover::kParamDtype)
      main_grads_[i].zero_();
    mark_ready(static_cast<int>(i));
  }
}

void GradSync::finish() {
  if (phase_ == Phase::kFinished)
    return;
  if (phase_ != Phase::kReducing) {
    throw ConfigError(
        phase_ == Phase::kIdle
            ? "[data_parallel] finish() before any backward(): there is no "
              "gradient to wait for; call it once a step, after the last "
              "micro-batch's backward()"
            : "[data_parallel] finish() after backwards under no_sync() alone: "
              "run the step's last micro-batch outside no_sync()");
  }
  check_unchanged();
  fill_missing();
  report_.backward_end_ns = steady_now_ns();
  wait_all(report_);
  phase_ = Phase::kFinished;
  after_finish();
  hand_over();
}

void GradSync::hand_over() {
  if (options_.handover == GradHandover::kMainGrad) {
    reduced_probes_.resize(main_grads_.size());
    std::transform(
        main_grads_.begin(), main_grads_.end(), reduced_probes_.begin(), probe);
    return;
  }
  const torch::NoGradGuard no_grad;
  handed_over_.resize(params_.size());
  for (size_t i = 0; i < params_.size(); ++i) {
    torch::Tensor& grad = params_[i].tensor.mutable_grad();
    if (is_16_bit(dtypes_[i])) {
      grad = torch::empty(
          main_grads_[i].sizes(), main_grads_[i].options().dtype(dtypes_[i]));
      at::mul_out(
          grad,
          main_grads_[i],
          at::scalar_tensor(mean_scale(), main_grads_[i].options()));
    } else {
      // Not as a view: zero_grad() detaches in place, which views refuse.
      grad = main_grads_[i].variable_data();
    }
    handed_over_[i] = {
        grad.data_ptr(),
        static_cast<int64_t>(grad._version()),
        static_cast<int64_t>(params_[i].tensor._version()),
        probe(params_[i].tensor)};
  }
}

void GradSync::reset() {
  if (phase_ == Phase::kReducing) {
    // A backward broke off: let what is under way end before its memory is
    // written again.
    try {
      wait_all(report_);
    } catch (const CommError&) {
      // Told to whoever started it; here the step is being given up.
    }
  }
  std::fill(touched_.begin(), touched_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  ready_order_.clear();
  phase_ = Phase::kIdle;
  on_reset();
}

void GradSync::count_ranks_with_data(int mine) {
  auto count = torch::full({1}, mine, torch::kLong);
  communicator_->all_reduce(count)->wait();
  ranks_with_data_ = static_cast<int>(count.item<int64_t>());
}

int GradSync::first_rank_with_data() {
  if (ranks_with_data_ == communicator_->size())
    return 0;
  auto first = torch::full(
      {1},
      ready_order_.empty() ? communicator_->size() : communicator_->rank(),
      torch::kLong);
  communicator_->all_reduce(first, ReduceOp::kMin)->wait();
  return static_cast<int>(first.item<int64_t>());
}

void GradSync::shadow_until_all_joined() {
  if (!uneven_inputs_) {
    throw ConfigError(
        "[data_parallel] join() needs uneven inputs: call "
        "set_uneven_inputs(true) on every rank before the first step");
  }
  if (phase_ == Phase::kFinished)
    reset();
  while (true) {
    count_ranks_with_data(0);
    if (ranks_with_data_ == 0)
      break;
    zero_main_grads();
    shadow_launches();
    SyncReport ignored;
    wait_all(ignored);
    // The others are in finish(): what they agree on there, all agree on.
    after_finish();
    on_reset();
  }
  zero_main_grads();
  ranks_with_data_ = communicator_->size();
}

}  // namespace brigade
