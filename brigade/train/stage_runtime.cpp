#include "brigade/train/stage_runtime.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/config/model_layout.h"
#include "brigade/model/init_weights.h"
#include "brigade/model_spec/adapter.h"
#include "brigade/ops/adamw.h"
#include "brigade/optim/make_optimizer.h"
#include "brigade/run/model_units.h"
#include "brigade/tensor_parallel/replicated_gradients.h"
#include "brigade/train/from_config.h"

namespace brigade {
namespace {

std::shared_ptr<ModelContext> make_context(
    const TrainConfig& config,
    const ModelContext& common,
    int stage,
    const std::shared_ptr<WeightGradientQueue>& queue) {
  auto context = std::make_shared<ModelContext>(common);
  context->weight_grad = ops::WeightGrad::kAccumulate;
  if (queue) {
    context->defer_weight_grad = [queue](std::function<void()> compute) {
      queue->add(std::move(compute));
    };
  }
  context->recompute = config.training.recompute_of_stage(stage);
  return context;
}

// First values of Initialization::kRowNorms.
void set_row_norms(std::span<const Param> params, Communicator& tp) {
  std::map<std::string, const Param*> by_name;
  for (const Param& param : params)
    by_name[param.name] = &param;
  for (const Param& param : params) {
    if (param.row->initialization != Initialization::kRowNorms)
      continue;
    const Param& weight = *by_name.at(adapted_module(param.name) + ".weight");
    const torch::Tensor squares =
        weight.tensor.to(torch::kFloat).square().sum(1);
    if (weight.row->cut.dim == 1)
      tp.all_reduce(squares)->wait();
    const torch::Tensor zeros = (squares == 0).nonzero();
    if (zeros.numel() > 0)
      throw DataError(fmt::format(
          "[adapter] row {} of this rank's part of '{}' is zero and has no "
          "direction that a magnitude could scale: set adapter.use_dora to "
          "false, or leave that linear out of adapter.targets",
          zeros[0][0].item<int64_t>(),
          weight.name));
    torch::Tensor(param.tensor).copy_(squares.sqrt());
  }
}

// All ranks that have a part of one of this stage's matrices and step it with
// the same gradient; connected at the first call, which is collective over all
// ranks, as the stage is made. Apart: pieces are sent while gradients are
// reduced.
RanksOf matrix_ranks(const ProcessMesh& mesh) {
  return [&mesh, ranks = CommunicatorPtr()](const Param&) mutable {
    if (!ranks) {
      const int dp_of_group = mesh.dims().dp / mesh.replica_groups();
      ranks = mesh.split(
          "matrix owners", Connection::kApart, [&](const Coordinate& at) {
            return std::vector<int>{at.pp, at.dp / dp_of_group};
          });
    }
    return ranks;
  };
}

}  // namespace

StageRuntime::StageRuntime(
    const TrainConfig& config,
    const ModelContext& common,
    const ProcessMesh& mesh,
    int stage,
    const ModelPart& part)
    : stage_(stage),
      part_(part),
      config_(config),
      wire_(std::make_shared<Wire>()) {
  wire_->hook = wire_hook(config_, wire_memory_);
  if (config.distributed.pp_engine == ScheduleKind::kZeroBubble)
    weight_gradients_ = std::make_shared<WeightGradientQueue>();
  const auto context = make_context(config, common, stage, weight_gradients_);
  if (part.is_last && config.training.loss.is_of_pairs()) {
    preference_loss_ =
        std::make_shared<PreferenceLoss>(config.training.loss, mesh.sequence());
    context->objective = [loss = preference_loss_](
                             const MicroBatch& batch,
                             const torch::Tensor& losses) {
      return (*loss)(batch, losses);
    };
  }
  context->before_forward = [this](const ModelUnit& unit) {
    use_weights_of(unit);
  };
  const GradSyncOptions options = sync_options();
  // Otherwise weights stay readable after forward.
  if (options.sharding == Sharding::kParameters)
    context->before_backward = context->before_forward;
  model_ = std::make_shared<DecoderModel>(context, part);

  auto sync = make_grad_sync(
      config.distributed.grad_sync,
      make_params(mesh),
      mesh.replicas(),
      options);
  const std::span<const Param> trained = sync->params();
  stepper_ = std::make_unique<ParamStepper>(
      std::move(sync),
      [this](const Param& param) {
        return step_rule_of(*param.row, config_.training);
      },
      [this, trained, ranks_of = matrix_ranks(mesh)](
          std::vector<OptimizerGroup> groups) {
        return make_optimizer(
            optimizer_options(config_), std::move(groups), trained, ranks_of);
      });
}

std::vector<Param> StageRuntime::make_params(const ProcessMesh& mesh) {
  const auto rows = list_parameters(model_->context().description, part_);
  const int zero_stage = config_.distributed.zero_stage;
  weight_units_ = divide_into_units(rows, part_, zero_stage);
  const auto weights = model_->named_parameters();
  BRIGADE_ASSERT(
      weights.size() == rows.size(),
      "the model has {} parameters, its table {}",
      weights.size(),
      rows.size());
  const bool is_pretrained = config_.model.init == WeightInit::kPretrained;
  const torch::NoGradGuard no_grad;
  std::vector<Param> params;
  for (const ParameterRow& row : rows) {
    Param param = make_param(
        row,
        part_,
        shard_parameter(
            row,
            mesh.dims(),
            mesh.coordinate(),
            model_->context().tensor_parallel.tokens),
        weights[row.name]);
    param.has_own_bucket = zero_stage > 0 && !row.tied_head.empty();
    if (row.expert != kNoExpert && mesh.dims().ep > 1)
      param.group = mesh.expert_replicas();
    param.unit = weight_units_.at(row.unit());
    param.tensor.set_requires_grad(row.trains);
    // Values from the seed where the base model's files have none.
    if (!is_pretrained || row.stored_in == StoredIn::kAdapter)
      param.tensor.copy_(take_shard(
          initial_weight(row, config_.training.seed),
          param.cut.slice,
          param.cut.shape));
    params.push_back(std::move(param));
  }
  if (is_pretrained)
    load_pretrained(config_.model.folder, model_of(config_), params);
  set_row_norms(params, *mesh.axis(Axis::kTp));
  return params;
}

void StageRuntime::use_weights_of(const ModelUnit& unit) {
  const auto found = weight_units_.find(unit);
  if (found != weight_units_.end())
    sync().weights().use(found->second);
}

GradSyncOptions StageRuntime::sync_options() {
  GradSyncOptions options = grad_sync_options(config_);
  // Whose config has no wire, and no check that notes gradients.
  if (config_.distributed.grad_sync == GradSyncAlgorithm::kPerParam)
    return options;
  options.hook = [wire = wire_](BucketView& bucket, Communicator& group) {
    if (wire->treatment != Buckets::kReduced)
      note_gradients(bucket, wire->notes);
    return wire->treatment == Buckets::kNoted ? make_completed_work()
                                              : wire->hook(bucket, group);
  };
  return options;
}

void StageRuntime::reduce_over(const ProcessMesh& mesh, Span span) {
  const bool is_own = span == Span::kOwnGroup;
  const CommunicatorPtr now = sync().all_ranks();
  const CommunicatorPtr& next = is_own ? mesh.replicas() : mesh.dp_cp();
  if (now == next)
    return;
  wire_->hook = wire_hook(config_, wire_memory_);
  sync().regroup(now, next);
  if (is_own)
    sync().regroup(mesh.all_expert_replicas(), mesh.expert_replicas());
  else
    sync().regroup(mesh.expert_replicas(), mesh.all_expert_replicas());
}

void StageRuntime::reduce_now() {
  begin_reduction();
  for (int param = 0;
       param < static_cast<int>(stepper_->sync().params().size());
       ++param)
    sync().mark_ready(param);
}

void StageRuntime::end_rehearsal() {
  stepper_->finish();
  stepper_->skip_step();
}

void StageRuntime::finish_gradients(const ProcessMesh& mesh) {
  stepper_->finish();
  const auto& params = stepper_->sync().params();
  std::map<int, std::vector<torch::Tensor>> partial;  // by gradient_ranks
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].cut.gradient_ranks > 1)
      partial[params[i].cut.gradient_ranks].push_back(
          sync().owned_main_grad(static_cast<int>(i)));
  }
  for (const auto& [ranks, gradients] : partial)
    sum_over_replicas(*mesh.axis(Axis::kTp), ranks, gradients);

  if (mesh.embedding()->size() > 1) {
    for (size_t i = 0; i < params.size(); ++i) {
      const auto gradient = sync().owned_main_grad(static_cast<int>(i));
      if (!params[i].row->tied_head.empty() && gradient.numel() > 0)
        mesh.embedding()->all_reduce(gradient)->wait();
    }
  }
}

torch::Tensor StageRuntime::sum_of_squares() const {
  torch::Tensor total = stepper_->optimizer().squared_gradients();
  if (!total.defined())
    total = torch::zeros(
        {}, torch::dtype(torch::kDouble).device(model_->context().device));
  const auto& params = stepper_->sync().params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].is_counted_here() ||
        !stepper_->sync().is_counted_here(*params[i].group))
      total = total - ops::sum_of_squares(
                          stepper_->sync().owned_main_grad(static_cast<int>(i)),
                          model_->context().kernels);
  }
  return total;
}

std::string StageRuntime::first_non_finite() const {
  const auto& params = stepper_->sync().params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!stepper_->sync()
             .owned_main_grad(static_cast<int>(i))
             .isfinite()
             .all()
             .item<bool>())
      return params[i].name;
  }
  return {};
}

void StageRuntime::show_averages() {
  if (!optimizer().averages_weights())
    return;
  sync().weights().need_all();
  optimizer().show_averages();
  sync().gather_weights();
}

void StageRuntime::hide_averages() {
  if (!optimizer().averages_weights())
    return;
  sync().weights().need_all();
  optimizer().hide_averages();
  sync().gather_weights();
}

}  // namespace brigade
