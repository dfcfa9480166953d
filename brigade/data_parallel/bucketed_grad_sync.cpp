#include "brigade/data_parallel/bucketed_grad_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data_parallel/check_params.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

void check_sharding(const GradSyncOptions& options) {
  if (options.sharding == Sharding::kNone)
    return;
  const auto refuse = [&](const char* what, const char* remedy) {
    throw UsageError(fmt::format(
        "[data_parallel] sharding = {} with {}: {}",
        to_string(options.sharding),
        what,
        remedy));
  };
  if (options.handover != GradHandover::kMainGrad)
    refuse(
        "handover = kParamDtype",
        "an optimizer steps the flat memory that a rank owns; set handover = "
        "GradHandover::kMainGrad");
  if (options.order == BucketOrder::kObserved)
    refuse(
        "order = kObserved",
        "what a rank owns must not change after the first step; set order = "
        "BucketOrder::kReverse");
  if (!divides_gradients(options.sharding))
    return;
  if (options.reach != GraphReach::kOnce)
    refuse(
        "reach = kAsInFirstStep",
        "gradients are sent while backward runs; use Sharding::kOptimizer");
  if (options.missing_gradient != MissingGradient::kError)
    refuse(
        "missing_gradient = kZero",
        "all ranks must reach the same parameters; use Sharding::kOptimizer");
}

GradSyncOptions with_hook(GradSyncOptions options) {
  if (!options.hook)
    options.hook = sum_hook(options.sharding);
  return options;
}

void check_sparse_gradients(
    const std::vector<Param>& params,
    const GradSyncOptions& options) {
  if (options.handover == GradHandover::kParamDtype)
    return;
  for (const Param& param : params) {
    if (param.has_sparse_gradient && param.tensor.requires_grad()) {
      throw UsageError(fmt::format(
          "[data_parallel] parameter '{}' has sparse gradients "
          "(EmbeddingOptions::sparse), which have no place in the flat memory "
          "of handover = kMainGrad; set kParamDtype, or turn sparse off: only "
          "the rows of a step are sent anyway",
          param.name));
    }
  }
}

}  // namespace

BucketedGradSync::BucketedGradSync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options)
    : GradSync(
          params,
          std::move(all_ranks),
          (check_sharding(options),
           check_sparse_gradients(params, options),
           with_hook(options))),
      order_is_final_(options.order != BucketOrder::kObserved) {
  const auto scale_of = [this](int param) { return mean_scale_of(param); };
  const HandoverParts parts{
      memory(), scale_of, [this] { return mean_scale(); }, progress_};
  handover_ = options_.handover == GradHandover::kMainGrad
                  ? make_main_grad_handover(parts)
                  : make_param_dtype_handover(parts);
  sparse_handover_ = make_sparse_handover(parts);
  make_buckets();
  hooks_ = std::make_unique<GradHooks>(
      params_.trained(),
      GradHooks::Callbacks{
          [this](int param, Arrival arrival) {
            before_accumulate(param, arrival);
          },
          [this](int param) { after_accumulate(param); }});
}

BucketedGradSync::~BucketedGradSync() = default;

void BucketedGradSync::make_buckets() {
  buckets_ = std::make_unique<BucketQueue>(plan_, memory(), options_);
}

// ---- during backward

void BucketedGradSync::keep_gradients() {
  for (int param = 0; param < static_cast<int>(params().size()); ++param) {
    if (handover_of(param).keep_share(param, ranks_with_data(param)))
      progress_.set(param, ReadyState::kAccumulated);
  }
}

void BucketedGradSync::begin_reducing() {
  if (phase_ == Phase::kAccumulating) {
    phase_ = Phase::kReducing;
    report_ = {};
    report_.ready_ns.resize(params().size());
    report_.backward_begin_ns = steady_now_ns();
    backward_begin_ = StreamMark::timed(all_ranks_->options().device);
    followed_buckets_ = 0;
    is_followed_ = follower_.begins && follower_.begins();
    if (bucket_step_)
      bucket_step_->begin();
  }
}

void BucketedGradSync::before_accumulate(int param, Arrival arrival) {
  if (arrival == Arrival::kNothing)
    handover_->note_fused();
  throw_if_stepped_early();
  enter_step();
  if (progress_.state_of(param) == ReadyState::kReady)
    throw_ready_twice(param);
  handover_of(param).before_accumulate(param, part_of(param));
}

void BucketedGradSync::after_accumulate(int param) {
  weights().throw_if_failed();
  const torch::NoGradGuard no_grad;
  const torch::Tensor& grad =
      params()[static_cast<size_t>(param)].tensor.grad();
  if (grad.defined() && grad.is_sparse() &&
      !params()[static_cast<size_t>(param)].has_sparse_gradient) {
    throw UsageError(fmt::format(
        "[data_parallel] the gradient of '{}' is sparse, which was not known "
        "when it was wrapped: only that of torch::nn::Embedding and "
        "EmbeddingBag is; use a dense one",
        params()[static_cast<size_t>(param)].name));
  }
  const GradPart part = part_of(param);
  const bool is_round =
      accumulate_only() && divides_gradients(options_.sharding);
  if (accumulate_only() && !is_round) {
    handover_of(param).after_accumulate(param, part);
    progress_.set(param, ReadyState::kAccumulated);
    return;
  }
  if (!is_round)
    begin_reducing();
  // This runs once per backward, nested ones included.
  const bool acts_at_end = is_round ||
                           options_.finish == FinishMode::kAtEndOfBackward ||
                           weights().units() != nullptr;
  if (acts_at_end)
    end_of_backward_.call_once([this] { at_backward_end(); });
  if (is_round) {
    handover_of(param).after_last(param, part);
    progress_.set(param, ReadyState::kReady);
    buckets_->mark_ready(param);
  } else if (is_last_reach(param)) {
    handover_of(param).after_last(param, part);
    launch_ready(param);
    follow_reduced_buckets();
  } else {
    handover_of(param).after_accumulate(param, part);
    progress_.set(param, ReadyState::kAccumulated);
  }
}

bool BucketedGradSync::is_last_reach(int param) {
  return options_.reach == GraphReach::kOnce || progress_.count_reach(param);
}

void BucketedGradSync::at_backward_end() {
  weights().end_pass();
  weights().throw_if_failed();
  if (phase_ == Phase::kAccumulating)
    end_round();
  if (accumulate_only())
    weights().expect_pass();
  if (phase_ != Phase::kReducing ||
      options_.finish != FinishMode::kAtEndOfBackward)
    return;
  // Ends the step only if all are ready: otherwise a further backward may bring
  // the rest, as with a loss per part of the graph.
  const bool is_counting =
      options_.reach == GraphReach::kAsInFirstStep && progress_.is_first_step();
  const bool all_ready =
      is_counting ? progress_.all_have_gradients() : progress_.all_are_ready();
  if (all_ready || zeros_count())
    reduce_step();
  else if (options_.reach == GraphReach::kAsInFirstStep)
    begin_use();
}

// kAsInFirstStep: a parameter that is reached less often than in the first step
// keeps the step waiting, while an optimizer would read this rank's own
// gradients.
void BucketedGradSync::throw_if_stepped_early() {
  if (options_.reach != GraphReach::kAsInFirstStep ||
      options_.finish != FinishMode::kAtEndOfBackward ||
      phase_ != Phase::kReducing || end_of_backward_.is_awaited() ||
      !handed_.were_used())
    return;
  throw UsageError(fmt::format(
      "[data_parallel] weights were stepped while the last step still waited "
      "for gradients of {}: its backward reached them less often than the one "
      "of the first step, but reach = kAsInFirstStep expects the same in all",
      progress_.names_of(ReadyState::kAccumulated)));
}

void BucketedGradSync::end_round() {
  if (!divides_gradients(options_.sharding))
    return;
  buckets_->launch_rest();
  buckets_->wait();
  buckets_->reset();
  progress_.reopen();
  handover_->note_untouched();
}

void BucketedGradSync::take_by_hand(int param) {
  if (progress_.state_of(param) == ReadyState::kReady)
    throw_ready_twice(param);
  if (progress_.state_of(param) == ReadyState::kNone)
    handover_of(param).finalize_by_hand(param);
  else
    handover_of(param).finalize(param);
  begin_reducing();
  launch_ready(param);
  follow_reduced_buckets();
}

// ---- stepping in backward

void BucketedGradSync::set_bucket_step(BucketStepPtr step) {
  if (step != nullptr && options_.sharding != Sharding::kNone) {
    throw UsageError(fmt::format(
        "[data_parallel] an optimizer that steps in backward with sharding = "
        "{}: call step() after backward(), or set Sharding::kNone",
        to_string(options_.sharding)));
  }
  steps_in_backward_ = step != nullptr;
  bucket_step_ = std::move(step);
}

bool BucketedGradSync::is_over(size_t bucket) {
  const CommunicatorOptions& options = all_ranks_->options();
  const bool by_launches =
      is_followed_ && (options.check_collectives || !options.device.is_cpu());
  return by_launches ? buckets_->is_behind(bucket)
                     : buckets_->is_reduced(bucket);
}

void BucketedGradSync::follow_reduced_buckets() {
  if (bucket_step_ == nullptr && !is_followed_)
    return;
  const auto is_sparse = [&](const RunPart& slot) {
    return params()[static_cast<size_t>(slot.param)].has_sparse_gradient;
  };
  for (; followed_buckets_ < plan_.buckets.size(); ++followed_buckets_) {
    const auto& slots = plan_.buckets[followed_buckets_].slots;
    // Sparse gradients are reduced at the step's end.
    if (!is_over(followed_buckets_) ||
        std::any_of(slots.begin(), slots.end(), is_sparse))
      return;
    buckets_->settle(followed_buckets_);
    if (is_followed_)
      follower_.is_reduced(followed_buckets_);
    if (bucket_step_)
      step_bucket(followed_buckets_);
  }
}

// Called in a backward: all parameters of the bucket have gradients on this
// rank, so that ranks need not agree on their use.
void BucketedGradSync::step_bucket(size_t bucket) {
  std::vector<int> given;
  for (const RunPart& slot : plan_.buckets[bucket].slots) {
    handover_of(slot.param).give(slot.param, GradUse::kUsed);
    given.push_back(slot.param);
  }
  bucket_step_->step(bucket, given);
}

void BucketedGradSync::launch_ready(int param) {
  progress_.make_ready(param);
  launch_bucket_of(param);
}

void BucketedGradSync::launch_bucket_of(int param) {
  report_.ready_ns[static_cast<size_t>(param)] = steady_now_ns();
  buckets_->mark_ready(param);
}

// ---- the step's end

void BucketedGradSync::reduce_step() {
  begin_reducing();
  check_unchanged(params_);
  leaves_.throw_if_changed();
  memory().take_back();
  throw_if_missing();
  wait_and_hand_over();
}

void BucketedGradSync::wait_and_hand_over() {
  const torch::NoGradGuard no_grad;
  finalize_missing();
  report_.backward_end_ns = steady_now_ns();
  backward_end_ = StreamMark::timed(all_ranks_->options().device);
  if (sparse_handover_)
    sparse_handover_->reduce();
  const auto used = agree_on_used();
  report_.buckets = buckets_->wait();
  progress_.expect_these_reaches();
  set_finished();
  call_before_handover();
  hand_over(used);
  begin_use();
  if (bucket_step_)
    handed_.note_all_stepped();
}

void BucketedGradSync::hand_over(const std::vector<int64_t>& used) {
  std::vector<bool> was_stepped(params().size());
  for (size_t b = 0; bucket_step_ && b < followed_buckets_; ++b) {
    for (const RunPart& slot : plan_.buckets[b].slots)
      was_stepped[static_cast<size_t>(slot.param)] = true;
  }
  adopt_observed_order();
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    std::vector<int> given;
    for (const RunPart& slot : plan_.buckets[b].slots) {
      const auto i = static_cast<size_t>(slot.param);
      if (was_stepped[i])
        continue;
      const bool is_used = used.empty() || used[i] != 0;
      handover_of(slot.param)
          .give(slot.param, is_used ? GradUse::kUsed : GradUse::kUnused);
      given.push_back(slot.param);
    }
    if (bucket_step_ && !given.empty())
      bucket_step_->step(b, given);
  }
}

void BucketedGradSync::finalize_missing() {
  for (int param = 0; param < static_cast<int>(params().size()); ++param) {
    const ReadyState state = progress_.state_of(param);
    if (state == ReadyState::kReady)
      continue;
    if (state == ReadyState::kAccumulated) {
      handover_of(param).finalize(param);
      launch_ready(param);
    } else {
      handover_of(param).finalize_missing(param);
      progress_.make_ready_without_gradient(param);
      launch_bucket_of(param);
    }
  }
}

// Returns by parameter whether some rank of its group has a gradient of it;
// empty if all do.
std::vector<int64_t> BucketedGradSync::agree_on_used() {
  if (!zeros_count())
    return {};
  return max_in_groups(progress_.used(), params());
}

void BucketedGradSync::adopt_observed_order() {
  if (order_is_final_)
    return;
  order_is_final_ = true;
  // All ranks must make the same plan, so all take the order of the first rank
  // that has one: a rank without data in this step has none.
  const int source =
      uneven_inputs_.first_rank_with_data(!progress_.ready_order().empty());
  const auto order =
      Agreement(*all_ranks_).values_of(source, progress_.complete_order());
  move_to(make_plan(std::vector<int>(order.begin(), order.end())));
  handover_->follow_memory();
  make_buckets();
}

const SyncReport& BucketedGradSync::report() const {
  if (is_asynchronous(all_ranks_->options().device)) {
    report_.backward_begin_ns = backward_begin_.reached_ns();
    report_.backward_end_ns = backward_end_.reached_ns();
    buckets_->note_times(report_.buckets);
  }
  return report_;
}

void BucketedGradSync::drop_cleared_gradients() {
  if (!divides_gradients(options_.sharding) || phase_ == Phase::kReducing)
    return;
  switch (handover_->clearing()) {
    case GradClearing::kNone:
      return;
    case GradClearing::kAll:
      memory().zero_main_grads();
      handover_->follow_memory();
      return;
    case GradClearing::kSome:
      if (phase_ == Phase::kAccumulating ||
          (phase_ == Phase::kFinished && handed_.are_uncleared() &&
           !handed_.were_used())) {
        throw UsageError(fmt::format(
            "[data_parallel] .grad was written between {}, but with sharding = "
            "{} the sum so far is each rank's own range: to drop it call "
            "reset(), or zero_grad(/*set_to_none=*/true) of the whole module",
            phase_ == Phase::kFinished ? "backwards" : "micro-batches",
            to_string(options_.sharding)));
      }
  }
}

void BucketedGradSync::reset() {
  // After a backward that broke off, what is under way must end before its
  // memory is written again.
  buckets_->abandon();
  buckets_->reset();
  // A step that was given up may have left gathers under way. After a finished
  // step, the next forward may have gathered its weights already.
  if (phase_ != Phase::kFinished)
    weights().abandon();
  progress_.reset();
  handed_.forget();
  end_of_backward_.forget();
  phase_ = Phase::kIdle;
}

// ---- ranks without data

void BucketedGradSync::allow_uneven_inputs(const UnevenInputsOptions& options) {
  if (options_.sharding != Sharding::kNone) {
    throw UsageError(fmt::format(
        "[data_parallel] uneven inputs with sharding = {}: a rank that has no "
        "data left would still have to step its part of the weights; give "
        "every rank the same number of steps, or set Sharding::kNone",
        to_string(options_.sharding)));
  }
  check_has_one_group(params(), *all_ranks_);
  uneven_inputs_.allow(options);
}

int BucketedGradSync::join() {
  if (!uneven_inputs_.is_allowed()) {
    throw UsageError(
        "[data_parallel] join() needs uneven inputs: call "
        "allow_uneven_inputs() on every rank before the first step");
  }
  if (phase_ == Phase::kAccumulating || phase_ == Phase::kReducing) {
    // This rank told the others that it has data for this step.
    begin_reducing();
    // Its weights are replaced below.
    const BucketStepPtr step = std::exchange(bucket_step_, nullptr);
    wait_and_hand_over();
    bucket_step_ = step;
  }
  reset();
  const torch::NoGradGuard no_grad;
  while (uneven_inputs_.begin_shadow_step())
    shadow_step();
  memory().zero_main_grads();
  const int last = uneven_inputs_.last_rank_with_data();
  broadcast_params(params_.all(), last);
  ++memory().flat_memory()->weights_version;
  return last;
}

// Launches what the others launch, with zeros, and takes part in their
// agreements after it.
void BucketedGradSync::shadow_step() {
  memory().zero_main_grads();
  buckets_->launch_rest();
  if (sparse_handover_) {
    sparse_handover_->drop();
    sparse_handover_->reduce();
  }
  agree_on_used();
  buckets_->wait();
  adopt_observed_order();
  reset();
}

// ---- errors

void BucketedGradSync::throw_if_missing() const {
  if (!zeros_count())
    progress_.throw_if_missing();
}

void BucketedGradSync::throw_ready_twice(int param) const {
  // The last step still waits for gradients: a further backward might have
  // completed it.
  const bool is_incomplete = options_.finish == FinishMode::kAtEndOfBackward &&
                             !end_of_backward_.is_awaited();
  if (is_incomplete)
    throw_if_missing();
  const std::string accumulated = progress_.names_of(ReadyState::kAccumulated);
  if (is_incomplete && !accumulated.empty()) {
    throw UsageError(fmt::format(
        "[data_parallel] the last step still waits for gradients of {}, which "
        "got theirs under no_sync() alone: call finish() after the step's last "
        "backward()",
        accumulated));
  }
  throw UsageError(fmt::format(
      "[data_parallel] parameter '{}' was marked ready twice in one step. "
      "Either backward() ran twice before finish() (put all but the last "
      "micro-batch under no_sync(), and call reset() after an exception in "
      "one), "
      "or one backward reaches the parameter "
      "through several nested ones (activation checkpointing that shares it: "
      "set reach = GraphReach::kAsInFirstStep)",
      params()[static_cast<size_t>(param)].name));
}

BucketedGradSync& as_bucketed(GradSync& sync, const char* function) {
  if (auto* bucketed = dynamic_cast<BucketedGradSync*>(&sync))
    return *bucketed;
  throw UsageError(fmt::format(
      "[data_parallel] {} needs buckets, but gradients are reduced parameter "
      "by parameter: use GradSyncAlgorithm::kBucketed",
      function));
}

}  // namespace brigade
