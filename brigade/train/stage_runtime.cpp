#include "brigade/train/stage_runtime.h"

#include <map>
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

ModelContextPtr make_context(
    const TrainConfig& config,
    const LlamaConfig& llama,
    const ProcessMesh& mesh,
    int stage,
    const std::shared_ptr<WeightGradientQueue>& queue) {
  auto context = std::make_shared<ModelContext>();
  context->description = describe_model(llama);
  context->dtype = scalar_type(config.model.dtype);
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
    : stage_(stage), part_(part), adam_(adamw_options(config)) {
  if (config.distributed.pp_engine == ScheduleKind::kZeroBubble)
    weight_gradients_ = std::make_shared<WeightGradientQueue>();
  const auto context =
      make_context(config, llama, mesh, stage, weight_gradients_);
  model_ = std::make_shared<Llama>(context, part);

  rows_ = list_parameters(context->description, part);
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
    params.push_back({row.name, weight, is_row_sparse(row, part)});
    weight_decay_.push_back(weight_decay_of(row, config.training));
  }
  if (is_pretrained)
    load_pretrained(config.model.folder, llama, local);

  const GradSyncOptions options = grad_sync_options(config.distributed);
  if (config.distributed.grad_sync == GradSyncKind::kPerParam) {
    sync_ = std::make_unique<PerParamGradSync>(
        std::move(params), mesh.dp_cp(), options);
  } else {
    sync_ = std::make_unique<BucketedGradSync>(
        std::move(params), mesh.dp_cp(), options);
  }
  make_optimizer();
}

void StageRuntime::make_optimizer() {
  OptimizerGroups made = make_optimizer_groups(*sync_, weight_decay_);
  optimizer_ = std::make_unique<AdamW>(std::move(made.groups), adam_);
  places_ = std::move(made.places);
  optimizer_layout_ = sync_->layout_version();
}

void StageRuntime::reduce_now() {
  begin_reduction();
  for (int param = 0; param < static_cast<int>(shards_.size()); ++param)
    sync_->mark_ready(param);
}

void StageRuntime::finish_gradients(const ProcessMesh& mesh) {
  const std::vector<ParamState> states_before = states();
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
      if (moved[i].master_low.defined())
        moved[i].master_low.copy_(states_before[i].master_low);
      moved[i].exp_avg.copy_(states_before[i].exp_avg);
      moved[i].exp_avg_sq.copy_(states_before[i].exp_avg_sq);
    }
  }

  std::map<int, std::vector<torch::Tensor>> partial;  // by gradient_ranks
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].gradient_ranks > 1)
      partial[shards_[i].gradient_ranks].push_back(
          sync_->main_grad(static_cast<int>(i)));
  }
  for (const auto& [ranks, gradients] : partial)
    sum_over_replicas(*mesh.axis(Axis::kTp), ranks, gradients);

  if (mesh.embedding()->size() > 1) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].tied_head.empty())
        mesh.embedding()
            ->all_reduce(sync_->main_grad(static_cast<int>(i)))
            ->wait();
    }
  }
}

bool StageRuntime::counts_in_norm(int param) const {
  const auto i = static_cast<size_t>(param);
  return shards_[i].is_first_replica && !is_copy_for_head(rows_[i], part_);
}

double StageRuntime::sum_of_squares() const {
  double total = optimizer_->sum_of_squared_gradients();
  for (size_t i = 0; i < shards_.size(); ++i) {
    const int param = static_cast<int>(i);
    if (!counts_in_norm(param))
      total -=
          ops::sum_of_squares(
              sync_->main_grad(param).view({-1}), model_->context().kernels)
              .item<double>();
  }
  return total;
}

std::string StageRuntime::first_non_finite() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!sync_->main_grad(static_cast<int>(i)).isfinite().all().item<bool>())
      return sync_->params()[i].name;
  }
  return {};
}

void StageRuntime::step(double lr, double grad_scale) {
  optimizer_->step(lr, grad_scale, ops::AfterRead::kZero);
  sync_->reset();
}

void StageRuntime::skip_step() {
  for (size_t i = 0; i < shards_.size(); ++i)
    sync_->main_grad(static_cast<int>(i)).zero_();
  sync_->reset();
}

std::vector<ParamState> StageRuntime::states() const {
  std::vector<ParamState> result;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const NamedParam& param = sync_->params()[i];
    const OptimizerGroups::Place& place = places_[i];
    const AdamWState& state = optimizer_->states()[place.group];
    const auto view = [&](const torch::Tensor& flat) {
      return flat.defined() ? flat.narrow(0, place.offset_numel, place.numel)
                                  .view(param.tensor.sizes())
                            : flat;
    };
    result.push_back(
        {param.name,
         shards_[i],
         is_copy_for_head(rows_[i], part_),
         param.tensor.detach(),
         view(state.master_low),
         view(state.exp_avg),
         view(state.exp_avg_sq)});
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
