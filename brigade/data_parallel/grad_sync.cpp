#include "brigade/data_parallel/grad_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/data_parallel/check_params.h"
#include "brigade/options/describe.h"

namespace brigade {
namespace {

FlatWeights place_of_weights(const GradSyncOptions& options) {
  return options.handover == GradHandover::kMainGrad ? FlatWeights::kMove
                                                     : FlatWeights::kLeaveAlone;
}

}  // namespace

std::string describe(const GradSyncOptions& options) {
  using G = GradSyncOptions;
  // A lambda has another type at each place in a program.
  return describe_members(
             options,
             OptionMember{"bucket_capacity_bytes", &G::bucket_capacity_bytes},
             OptionMember{"first_bucket_bytes", &G::first_bucket_bytes},
             OptionMember{"last_bucket_bytes", &G::last_bucket_bytes},
             OptionMember{"block_numel", &G::block_numel},
             OptionMember{"order", &G::order},
             OptionMember{"reduction", &G::reduction},
             OptionMember{"missing_gradient", &G::missing_gradient},
             OptionMember{"handover", &G::handover},
             OptionMember{"reach", &G::reach},
             OptionMember{"sharding", &G::sharding}) +
         fmt::format(
             "hook: function {:08x}\n",
             static_cast<uint32_t>(options.hook.target_type().hash_code()));
}

GradSync::GradSync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    GradSyncOptions options)
    : all_ranks_(std::move(all_ranks)),
      options_(std::move(options)),
      params_(check_params(
          params,
          describe(options_),
          place_of_weights(options_),
          all_ranks_)),
      wrapped_memory_(params_.all(), place_of_weights(options_)),
      uneven_inputs_(*all_ranks_),
      plan_(lay_out()),
      leaves_(memory()),
      progress_(this->params()),
      handed_(options_, memory(), progress_) {
  follow_memory();
}

// The module is an ordinary one again, whose weights are all there.
GradSync::~GradSync() {
  *memory().flat_memory() = {.is_current = false};
}

// ---- a step

void GradSync::mark_ready(int param) {
  if (param < 0 || param >= static_cast<int>(params().size())) {
    throw UsageError(fmt::format(
        "[data_parallel] mark_ready({}): there are {} parameters",
        param,
        params().size()));
  }
  if (accumulate_only())
    return;
  if (phase_ == Phase::kFinished)
    reset();  // main_grad has another step's gradients
  if (phase_ == Phase::kIdle)
    begin_step();
  const torch::NoGradGuard no_grad;
  take_by_hand(param);
}

void GradSync::enter_step() {
  end_of_backward_.throw_if_broken_off();
  if (phase_ == Phase::kFinished)
    leave_step();
  if (phase_ == Phase::kIdle)
    begin_step();
  leaves_.throw_if_changed();
}

void GradSync::begin_step() {
  if (before_step_)
    before_step_();
  check_unchanged(params_);
  weights().throw_if_stale();
  // The gathers read memory that an optimizer writes next.
  weights().need_all();
  memory().take_back();
  weights().note_current();
  leaves_.show_gradients();
  uneven_inputs_.begin_step();
  phase_ = Phase::kAccumulating;
}

void GradSync::leave_step() {
  const torch::NoGradGuard no_grad;
  const bool are_used = handed_.were_used();
  if (are_used && handed_.end_use())
    memory().zero_main_grads();
  if (!are_used) {
    drop_cleared_gradients();
    leaves_.drop_cleared();
  }
  reset();
  if (are_used)
    return;
  phase_ = Phase::kFinished;  // it still is if begin_step() throws
  begin_step();
  keep_gradients();
}

void GradSync::finish() {
  end_of_backward_.throw_if_broken_off();
  const bool is_first_call = !std::exchange(was_finished_by_hand_, true);
  if (phase_ == Phase::kFinished) {
    // Otherwise this is a step in which no backward reached a parameter of this
    // rank.
    if (!zeros_count() || (is_first_call && !handed_.were_touched()))
      return;
    leave_step();
  }
  if (accumulate_only() && phase_ != Phase::kIdle) {
    throw UsageError(
        "[data_parallel] finish() under no_sync() alone, which holds the "
        "reduction: run the step's last micro-batch outside no_sync(), and "
        "call finish() after it");
  }
  if (phase_ != Phase::kReducing && !zeros_count()) {
    throw UsageError(
        phase_ == Phase::kIdle
            ? "[data_parallel] finish() before any backward(): there is no "
              "gradient to wait for; call it once a step, after the last "
              "micro-batch's backward()"
            : "[data_parallel] finish() after backwards under no_sync() alone: "
              "run the step's last micro-batch outside no_sync()");
  }
  if (phase_ == Phase::kIdle)
    begin_step();
  reduce_step();
  was_finished_by_hand_ = true;
}

void GradSync::set_finished() {
  phase_ = Phase::kFinished;
  was_finished_by_hand_ = false;
}

// ---- memory

BucketPlanOptions GradSync::plan_options() const {
  if (options_.block_numel < 1)
    throw UsageError(fmt::format(
        "[grad_sync] block_numel = {}: blocks have at least one element; leave "
        "it 1, or set it to kBlockNumel for moments in int8",
        options_.block_numel));
  int ranks = 1;
  for (const Param& param : params())
    ranks = std::lcm(ranks, param.group->size());
  BucketPlanOptions options{
      .capacity_bytes = options_.bucket_capacity_bytes,
      .first_bucket_bytes = options_.first_bucket_bytes,
      .last_bucket_bytes = options_.last_bucket_bytes,
      .ranks = ranks};
  align_to_blocks(options, options_.block_numel);
  return options;
}

BucketPlan GradSync::make_plan(const std::vector<int>& order) const {
  return plan_buckets(bucket_params(), order, plan_options());
}

BucketPlan GradSync::lay_out() {
  broadcast_params(params_.all(), 0);
  BucketPlan plan = make_plan(
      initial_order(options_.order, static_cast<int>(params().size())));
  params_.lay_out(
      plan,
      plan_options(),
      place_of_weights(options_),
      options_.sharding,
      options_.gather);
  return plan;
}

void GradSync::follow_memory() {
  FlatMemory& flat = *memory().flat_memory();
  flat.before_step = [this] { check_before_step(); };
  flat.after_step = [this](int64_t numel) { note_stepped(numel); };
}

void GradSync::move_to(BucketPlan plan) {
  plan_ = std::move(plan);
  params_.move_to(plan_, plan_options());
  follow_memory();
}

void GradSync::zero_main_grads() {
  if (phase_ == Phase::kFinished)
    reset();
  memory().zero_main_grads();
}

torch::Tensor GradSync::owned_main_grad(int param) const {
  const RunPart& part = params()[static_cast<size_t>(param)].owned;
  return segments()[part.run].owned_main_grad().narrow(
      0, part.offset, part.numel);
}

// ---- the optimizer

void GradSync::begin_use() {
  leaves_.show_gradients();
  handed_.begin(grad_scale());
}

void GradSync::check_before_step() {
  const bool waits_for_finish = phase_ == Phase::kReducing &&
                                options().finish == FinishMode::kExplicit &&
                                !steps_in_backward_;
  if (options().handover == GradHandover::kMainGrad &&
      (phase_ == Phase::kAccumulating || waits_for_finish))
    throw_not_reduced("an optimizer's step");
  // The optimizer must step the values that torch::load() has brought since
  // backward.
  if (options().sharding != Sharding::kParameters)
    memory().take_back();
  handed_.begin_optimizer_step();
}

void GradSync::check_are_reduced(const char* function) const {
  const bool is_own_sum = phase_ == Phase::kAccumulating &&
                          options().handover == GradHandover::kParamDtype;
  if (phase_ == Phase::kIdle || phase_ == Phase::kFinished || is_own_sum)
    return;
  throw_not_reduced(function + std::string("()"));
}

void GradSync::throw_not_reduced(const std::string& what) {
  throw UsageError(fmt::format(
      "[data_parallel] {} before the step's gradients are reduced: call it "
      "after the last backward() outside no_sync(), and with "
      "FinishMode::kExplicit after finish()",
      what));
}

// ---- groups

double GradSync::mean_scale() const {
  return options_.reduction == Reduction::kMean ? 1.0 / uneven_inputs_.divisor()
                                                : 1.0;
}

double GradSync::grad_scale() const {
  return options_.handover == GradHandover::kMainGrad ? mean_scale() : 1.0;
}

double GradSync::mean_scale_of(int param) const {
  const Param& of = params()[static_cast<size_t>(param)];
  if (options_.reduction != Reduction::kMean)
    return 1.0;
  if (of.mean_divisor != 0)
    return 1.0 / of.mean_divisor;
  return of.group == all_ranks_ ? mean_scale() : 1.0 / of.group->size();
}

int GradSync::ranks_with_data(int param) const {
  const CommunicatorPtr& group = params()[static_cast<size_t>(param)].group;
  return group == all_ranks_ ? uneven_inputs_.ranks_with_data() : group->size();
}

void GradSync::regroup(const CommunicatorPtr& from, const CommunicatorPtr& to) {
  const char* problem = nullptr;
  if (options_.sharding != Sharding::kNone)
    problem = "with sharding, whose ranges belong to the ranks of a group";
  else if (options_.reduction != Reduction::kSum)
    problem = "with reduction = kMean, which divides by a group's size";
  else if (uneven_inputs_.is_allowed())
    problem = "with uneven inputs, which count the ranks of one group";
  else if (phase_ == Phase::kAccumulating || phase_ == Phase::kReducing)
    problem = "within a step: call it after finish() or reset()";
  if (problem != nullptr)
    throw UsageError(fmt::format("[data_parallel] regroup() {}", problem));
  params_.regroup(from, to);
  if (all_ranks_ == from) {
    all_ranks_ = to;
    uneven_inputs_ = UnevenInputs(*to);
  }
}

bool GradSync::is_counted_here(const Communicator& group) const {
  return options().sharding != Sharding::kNone || !is_counted_elsewhere() ||
         group.rank() == 0;
}

bool GradSync::is_counted_elsewhere() const {
  return options().sharding != Sharding::kNone ||
         std::any_of(params().begin(), params().end(), [&](const Param& param) {
           return param.group != all_ranks();
         });
}

std::unique_ptr<GradSync> make_grad_sync(
    GradSyncAlgorithm kind,
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options) {
  if (kind == GradSyncAlgorithm::kBucketed)
    return std::make_unique<BucketedGradSync>(
        params, std::move(all_ranks), options);
  const auto is_sparse = [](const Param& param) {
    return param.has_sparse_gradient && param.tensor.requires_grad();
  };
  if (options.sharding != Sharding::kNone ||
      std::any_of(params.begin(), params.end(), is_sparse))
    throw UsageError(
        "[data_parallel] sharding and sparse gradients need buckets: use "
        "GradSyncAlgorithm::kBucketed, or turn EmbeddingOptions::sparse off");
  if (options.hook)
    throw UsageError(
        "[data_parallel] a hook (MixedPrecision::reduce_dtype is one) needs "
        "buckets: use GradSyncAlgorithm::kBucketed, or leave it out");
  return make_per_param_grad_sync(params, std::move(all_ranks), options);
}

}  // namespace brigade
