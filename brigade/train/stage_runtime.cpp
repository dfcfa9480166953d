#include "brigade/train/stage_runtime.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/data_parallel/per_param_grad_sync.h"
#include "brigade/model/init_weights.h"
#include "brigade/ops/adamw.h"
#include "brigade/tensor_parallel/replicated_gradients.h"
#include "brigade/train/from_config.h"
#include "brigade/train/pretrained.h"

namespace brigade {
namespace {

std::shared_ptr<ModelContext> make_context(
    const TrainConfig& config,
    const LlamaConfig& llama,
    const ProcessMesh& mesh,
    int stage,
    const std::shared_ptr<WeightGradientQueue>& queue) {
  auto context = std::make_shared<ModelContext>();
  context->description = describe_model(llama);
  context->dtype = scalar_type(config.model.dtype);
  context->device = mesh.device();
  context->kernels = kernels_of(config.model.kernels);
  context->tensor_parallel.group = mesh.axis(Axis::kTp);
  context->tensor_parallel.tokens = token_layout(config.distributed);
  context->context_parallel = mesh.axis(Axis::kCp);
  context->weight_grad = ops::WeightGrad::kAccumulate;
  if (queue) {
    context->defer_weight_grad = [queue](std::function<void()> compute) {
      queue->add(std::move(compute));
    };
  }
  context->recompute = config.training.recompute_of_stage(stage);
  return context;
}

}  // namespace

torch::Tensor take_shard(const torch::Tensor& full, const ParamShard& shard) {
  if (shard.dim == kNotCut)
    return full;
  const auto slice =
      full.narrow(shard.dim, shard.begin, shard.end - shard.begin);
  if (slice.sizes() == torch::IntArrayRef(shard.shape))
    return slice;
  auto padded = torch::zeros(shard.shape, full.options());
  padded.narrow(shard.dim, 0, shard.end - shard.begin).copy_(slice);
  return padded;
}

StageRuntime::StageRuntime(
    const TrainConfig& config,
    const LlamaConfig& llama,
    const ProcessMesh& mesh,
    int stage,
    const ModelPart& part)
    : stage_(stage),
      part_(part),
      config_(config),
      wire_(std::make_shared<Wire>()) {
  if (config.distributed.pp_engine == ScheduleKind::kZeroBubble)
    weight_gradients_ = std::make_shared<WeightGradientQueue>();
  const auto context =
      make_context(config, llama, mesh, stage, weight_gradients_);
  const GradSyncOptions options = sync_options();
  reduce_over(mesh.replicas());
  if (options.sharding == Sharding::kParameters) {
    context->before_use = [this](const std::string& module) {
      use_weights_of(module);
    };
    context->before_backward = context->before_use;
  } else if (options.sharding != Sharding::kNone) {
    context->before_use = [this](const std::string& module) {
      await_weights_of(module);
    };
  }
  model_ = std::make_shared<Llama>(context, part);

  rows_ = list_parameters(context->description, part);
  weight_units_ = divide_into_units(rows_);
  const auto weights = model_->named_parameters();
  BRIGADE_ASSERT(
      weights.size() == rows_.size(),
      "the model has {} parameters, its table {}",
      weights.size(),
      rows_.size());
  std::vector<NamedParam> params;
  std::vector<LocalParam> local;
  const bool is_pretrained = config.model.init == WeightInit::kPretrained;
  const torch::NoGradGuard no_grad;
  for (const ParameterRow& row : rows_) {
    torch::Tensor weight = weights[row.name];
    shards_.push_back(shard_parameter(
        row,
        mesh.dims().tp,
        mesh.coordinate().tp,
        context->tensor_parallel.tokens));
    local.push_back({row.name, shards_.back(), weight});
    if (!is_pretrained) {
      weight.copy_(take_shard(
          initial_weight(row, config.training.seed), shards_.back()));
    }
    params.push_back(
        {.name = row.name,
         .tensor = weight,
         .is_row_sparse = is_row_sparse(row, part),
         .has_own_bucket =
             options.sharding != Sharding::kNone && !row.tied_head.empty(),
         .unit = options.sharding == Sharding::kParameters
                     ? weight_units_.of_row[params.size()]
                     : 0});
    weight_decay_.push_back(weight_decay_of(row, config.training));
  }
  if (is_pretrained)
    load_pretrained(config.model.folder, llama, local);

  if (config.distributed.grad_sync == GradSyncKind::kPerParam) {
    sync_ = std::make_unique<PerParamGradSync>(
        std::move(params), mesh.replicas(), options);
  } else {
    sync_ = std::make_unique<BucketedGradSync>(
        std::move(params), mesh.replicas(), options);
  }
  make_optimizer();
  for (size_t i = 0; i < rows_.size(); ++i)
    params_of_[module_of_forward(rows_[i].name)].push_back(static_cast<int>(i));
}

void StageRuntime::await_weights_of(const std::string& module) {
  if (module.empty()) {
    sync_->wait_for_weights();
    return;
  }
  const auto found = params_of_.find(module);
  if (found == params_of_.end())
    return;
  for (const int param : found->second)
    sync_->wait_for_weight(param);
}

void StageRuntime::use_weights_of(const std::string& module) {
  const auto found = weight_units_.of_module.find(module);
  if (found != weight_units_.of_module.end())
    sync_->sharded_weights()->use(found->second);
}

void StageRuntime::make_optimizer() {
  OptimizerGroups made = make_optimizer_groups(*sync_, weight_decay_);
  optimizer_ = brigade::make_optimizer(config_, std::move(made.groups));
  places_ = std::move(made.places);
  optimizer_layout_ = sync_->layout_version();
}

GradSyncOptions StageRuntime::sync_options() {
  GradSyncOptions options = grad_sync_options(config_.distributed);
  options.hook = [wire = wire_](BucketView& bucket, Communicator&) {
    return wire->hook(bucket, *wire->group);
  };
  return options;
}

void StageRuntime::reduce_over(const CommunicatorPtr& group) {
  if (wire_->group == group)
    return;
  *wire_ = {wire_hook(config_.distributed, wire_memory_), group};
}

void StageRuntime::reduce_now() {
  begin_reduction();
  for (int param = 0; param < static_cast<int>(shards_.size()); ++param)
    sync_->mark_ready(param);
}

void StageRuntime::finish_gradients(const ProcessMesh& mesh) {
  const std::vector<ParamState> states_before =
      is_sharded() ? std::vector<ParamState>() : states();
  sync_->finish();
  if (sync_->layout_version() != optimizer_layout_) {
    // The buckets were planned anew after the first step: the optimizer's
    // state moves with the parameters.
    const int64_t steps = optimizer_->steps();
    const auto old = std::exchange(optimizer_, nullptr);
    make_optimizer();
    optimizer_->set_steps(steps);
    const auto moved = states();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < moved.size(); ++i) {
      for (size_t k = 0; k < moved[i].states.size(); ++k)
        torch::Tensor(moved[i].states[k].tensor)
            .copy_(states_before[i].states[k].tensor);
    }
  }

  std::map<int, std::vector<torch::Tensor>> partial;  // by gradient_ranks
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].gradient_ranks > 1)
      partial[shards_[i].gradient_ranks].push_back(
          sync_->owned_main_grad(static_cast<int>(i)));
  }
  for (const auto& [ranks, gradients] : partial)
    sum_over_replicas(*mesh.axis(Axis::kTp), ranks, gradients);

  if (mesh.embedding()->size() > 1) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto gradient = sync_->owned_main_grad(static_cast<int>(i));
      if (!rows_[i].tied_head.empty() && gradient.numel() > 0)
        mesh.embedding()->all_reduce(gradient)->wait();
    }
  }
}

bool StageRuntime::counts_in_norm(int param) const {
  const auto i = static_cast<size_t>(param);
  return shards_[i].is_first_replica && !is_copy_for_head(rows_[i], part_);
}

torch::Tensor StageRuntime::sum_of_squares() const {
  torch::Tensor total = optimizer_->squared_gradients();
  if (!total.defined())
    total = torch::zeros(
        {}, torch::dtype(torch::kDouble).device(model_->context().device));
  for (size_t i = 0; i < shards_.size(); ++i) {
    const int param = static_cast<int>(i);
    if (!counts_in_norm(param))
      total =
          total - ops::sum_of_squares(
                      sync_->owned_main_grad(param), model_->context().kernels);
  }
  return total;
}

std::string StageRuntime::first_non_finite() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!sync_->owned_main_grad(static_cast<int>(i))
             .isfinite()
             .all()
             .item<bool>())
      return sync_->params()[i].name;
  }
  return {};
}

void StageRuntime::step(double lr, double grad_scale) {
  sync_->wait_for_weights();
  optimizer_->step(lr, grad_scale, ops::AfterRead::kZero);
  sync_->reset();
  sync_->gather_weights();
}

void StageRuntime::skip_step() {
  sync_->zero_main_grads();
  sync_->reset();
}

torch::Tensor ParamState::master_low() const {
  const auto found =
      std::find_if(states.begin(), states.end(), [](const State& state) {
        return state.name == kMasterState;
      });
  return found == states.end() ? torch::Tensor() : found->tensor;
}

ParamState StageRuntime::bare(size_t i) const {
  const NamedParam& param = sync_->params()[i];
  return {
      .name = param.name,
      .shard = shards_[i],
      .is_copy_for_head = is_copy_for_head(rows_[i], part_),
      .row = &rows_[i],
      .weight = param.tensor.detach(),
      .states = {}};
}

std::vector<ParamState> StageRuntime::states() const {
  std::vector<ParamState> result;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const NamedParam& param = sync_->params()[i];
    const OptimizerGroups::Place& place = places_[i];
    result.push_back(bare(i));
    const auto specs = optimizer_->kept(param.tensor.scalar_type());
    const auto& flat = optimizer_->states(place.group);
    for (size_t k = 0; k < specs.size(); ++k)
      result.back().states.push_back(
          {specs[k].name,
           flat[k]
               .narrow(0, place.offset_numel, place.numel)
               .view(param.tensor.sizes())});
  }
  return result;
}

void StageRuntime::visit_states(
    const std::function<void(const ParamState& state)>& visit) const {
  sync_->wait_for_weights();
  if (is_sharded()) {
    visit_sharded(visit);
    return;
  }
  for (const ParamState& state : states())
    visit(state);
}

// Bucket by bucket: each rank puts its part of every parameter into place, and
// the ranges are gathered as the weights' are.
void StageRuntime::visit_sharded(
    const std::function<void(const ParamState& state)>& visit) const {
  const torch::NoGradGuard no_grad;
  HeldUnit held(sync_->sharded_weights());
  for (const GradSegment& segment : sync_->segments()) {
    const auto specs = optimizer_->kept(segment.weight.scalar_type());
    std::vector<torch::Tensor> whole;
    for (size_t k = 0; k < specs.size(); ++k) {
      whole.push_back(torch::zeros(
          segment.weight.sizes(),
          segment.weight.options().dtype(specs[k].dtype)));
      for (const BucketSlot& slot : segment.slots) {
        const auto& place = places_[static_cast<size_t>(slot.param)];
        if (place.numel == 0)
          continue;
        whole[k]
            .narrow(0, slot.offset_numel + place.begin, place.numel)
            .copy_(optimizer_->states(place.group)[k].narrow(
                0, place.offset_numel, place.numel));
      }
      sync_->communicator()
          ->all_gather(
              whole[k],
              whole[k].narrow(0, segment.owned.begin, segment.owned.numel))
          ->wait_on_host();
    }
    held.hold(segment.unit);
    for (const BucketSlot& slot : segment.slots) {
      ParamState state = bare(static_cast<size_t>(slot.param));
      for (size_t k = 0; k < specs.size(); ++k)
        state.states.push_back(
            {specs[k].name,
             whole[k]
                 .narrow(0, slot.offset_numel, slot.numel)
                 .view(state.weight.sizes())});
      visit(state);
    }
  }
}

void StageRuntime::fill_states(
    const std::function<void(const ParamState& state)>& fill) {
  sync_->wait_for_weights();
  if (!is_sharded()) {
    for (const ParamState& state : states())
      fill(state);
    return;
  }
  const torch::NoGradGuard no_grad;
  HeldUnit held(sync_->sharded_weights());
  for (size_t i = 0; i < rows_.size(); ++i) {
    ParamState state = bare(i);
    for (const StateSpec& spec : optimizer_->kept(state.weight.scalar_type()))
      state.states.push_back(
          {spec.name,
           torch::zeros_like(
               state.weight, state.weight.options().dtype(spec.dtype))});
    const OwnedPart& owned = sync_->owned_parts()[i];
    const GradSegment& segment = sync_->segments()[owned.segment];
    held.hold(segment.unit);
    fill(state);
    if (segment.weight_shard.defined())
      segment.weight_shard.narrow(0, owned.offset, owned.numel)
          .copy_(state.weight.view({-1}).narrow(0, owned.begin, owned.numel));
    const auto& place = places_[i];
    for (size_t k = 0; place.numel > 0 && k < state.states.size(); ++k) {
      optimizer_->states(place.group)[k]
          .narrow(0, place.offset_numel, place.numel)
          .copy_(state.states[k].tensor.view({-1}).narrow(
              0, place.begin, place.numel));
    }
  }
  held.let_go();
  if (sync_->sharded_weights() != nullptr)
    sync_->gather_weights();
}

std::vector<std::pair<std::string, torch::Tensor>> StageRuntime::replicas()
    const {
  sync_->wait_for_weights();
  std::vector<std::pair<std::string, torch::Tensor>> result;
  if (sync_->sharded_weights() != nullptr)
    return result;
  for (size_t i = 0; i < rows_.size(); ++i)
    result.emplace_back(rows_[i].name, sync_->params()[i].tensor.detach());
  if (is_sharded())
    return result;
  for (const ParamState& state : states()) {
    for (const ParamState::State& kept : state.states)
      result.emplace_back(kept.name + "." + state.name, kept.tensor);
  }
  return result;
}

int64_t StageRuntime::numel() const {
  int64_t total = 0;
  for (const NamedParam& param : sync_->params())
    total += param.tensor.numel();
  return total;
}

}  // namespace brigade
