#include <initializer_list>
#include <vector>

#include "brigade/config/group_keys.h"

namespace brigade {

namespace {

using enum Resume;

// Keys of config.training, or of a struct in it that the members lead to.
template <class... Members>
auto training_keys(std::vector<ConfigKey>& keys, Members... members) {
  return group_keys(keys, "training", &TrainConfig::training, members...);
}

void add_training_trajectory(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  const auto group = training_keys(keys);
  const auto lr = training_keys(keys, &TrainingConfig::lr);
  const ValueRule count = at_least(1);
  const ValueRule natural = at_least(0);
  group.key("seed", &G::seed, natural, kMeaning, "of weights and data order");
  lr.key(
      "learning_rate",
      &LrScheduleOptions::peak,
      natural,
      kTrajectory,
      "the highest");
  group.key(
      "total_train_steps",
      &G::total_train_steps,
      natural,
      kTrajectory,
      "optimizer steps");
  group.key(
      "seq_length", &G::seq_length, count, kMeaning, "tokens of a sequence");
  group.key(
      "micro_batch_size",
      &G::micro_batch_size,
      count,
      kFree,
      "sequences of a micro-batch on each rank of dp");
  group.key(
      "gradient_accumulation_steps",
      &G::gradient_accumulation_steps,
      count,
      kFree,
      "micro-batches of a step on each rank of dp");
  group.key("num_samples", &G::num_samples, count, kFree, "ignored")
      .ignored_because =
      "a prepared dataset is used whole; training.max_tokens limits a run";
  group.key(
      "max_tokens",
      &G::max_tokens,
      count,
      kTrajectory,
      "train no more tokens than this: whole steps, and the schedule ends "
      "where the run ends");
}

void add_loss(std::vector<ConfigKey>& keys) {
  const auto loss = training_keys(keys, &TrainingConfig::loss);
  using L = LossOptions;
  loss.key(
      "loss",
      &L::kind,
      kAny,
      kMeaning,
      "what is minimised: a mean over tokens, to which distill adds a teacher, "
      "or over pairs of a chosen and a rejected answer");
  loss.key(
          "preference_beta",
          &L::beta,
          {.low = 0, .low_is_excluded = true},
          kTrajectory,
          "of pairs, how much a difference of rewards counts")
      .only_with = {
      "loss",
      {to_string(LossKind::kDpo),
       to_string(LossKind::kOrpo),
       to_string(LossKind::kSimPo)}};
  loss.key(
          "simpo_gamma",
          &L::gamma,
          at_least(0),
          kTrajectory,
          "SimPO, the difference of rewards that is aimed at")
      .only_with = {"loss", {to_string(LossKind::kSimPo)}};
  loss.key(
          "distill_weight",
          &L::distill_weight,
          {.low = 0, .high = 1},
          kTrajectory,
          "distillation, the teacher's share of the loss; the rest is "
          "cross-entropy")
      .only_with = {"loss", {to_string(LossKind::kDistill)}};
}

ConfigKey& only_with_schedule(ConfigKey& key, LrDecay decay) {
  key.only_with = {.name = "lr_schedule", .values = {to_string(decay)}};
  return key;
}

void add_muon(std::vector<ConfigKey>& keys) {
  const auto muon =
      training_keys(keys, &TrainingConfig::optimizer, &OptimizerOptions::muon);
  const auto newton_schulz = training_keys(
      keys,
      &TrainingConfig::optimizer,
      &OptimizerOptions::muon,
      &MuonOptions::newton_schulz);
  using N = NewtonSchulzOptions;
  const ValueRule above_0{.low = 0, .low_is_excluded = true};
  muon.key(
          "muon_learning_rate",
          &MuonOptions::learning_rate,
          above_0,
          kTrajectory,
          "Muon, the highest of matrices, with learning_rate's schedule")
      .default_note = "learning_rate";
  muon.key(
      "muon_momentum",
      &MuonOptions::momentum,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "Muon, momentum");
  muon.key(
      "muon_nesterov",
      &MuonOptions::nesterov,
      kAny,
      kTrajectory,
      "Muon, look ahead along the momentum");
  muon.key(
      "muon_scale",
      &MuonOptions::scale,
      kAny,
      kTrajectory,
      "Muon, what an update is multiplied with: 0.2 sqrt(max(A, B)), "
      "sqrt(max(1, A / B)) or sqrt(A / B), for A rows and B columns");
  newton_schulz.key(
      "muon_steps",
      &N::steps,
      {.low = 1, .high = 100},
      kTrajectory,
      "Muon, steps of Newton-Schulz");
  newton_schulz.key(
      "muon_coefficients",
      &N::coefficients,
      kAny,
      kTrajectory,
      "Muon, a, b and c of a step, a X + (b X X^T + c (X X^T)^2) X");
  newton_schulz.key(
      "muon_eps",
      &N::eps,
      above_0,
      kTrajectory,
      "Muon, least norm that an update is divided by");
  newton_schulz.key(
      "muon_dtype",
      &N::dtype,
      kAny,
      kTrajectory,
      "Muon, of Newton-Schulz's products; in bfloat16 the last bits in which "
      "layouts differ become hundredths of an update");
}

void add_sgd(std::vector<ConfigKey>& keys) {
  const auto sgd =
      training_keys(keys, &TrainingConfig::optimizer, &OptimizerOptions::sgd);
  sgd.key(
      "sgd_momentum",
      &SgdOptions::momentum,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "SGD, momentum, not damped");
  sgd.key(
      "sgd_nesterov",
      &SgdOptions::nesterov,
      kAny,
      kTrajectory,
      "SGD, look ahead along the momentum");
}

void add_schedule_free(std::vector<ConfigKey>& keys) {
  const auto schedule_free = training_keys(
      keys, &TrainingConfig::optimizer, &OptimizerOptions::schedule_free);
  using S = ScheduleFreeOptions;
  schedule_free.key(
      "schedule_free_step_power",
      &S::step_power,
      at_least(0),
      kTrajectory,
      "schedule-free, a step counts in the average as its number to this "
      "power");
  schedule_free.key(
      "schedule_free_rate_power",
      &S::rate_power,
      at_least(0),
      kTrajectory,
      "schedule-free, and as the highest learning rate so far to this power");
}

void add_adam(std::vector<ConfigKey>& keys) {
  const auto adam =
      training_keys(keys, &TrainingConfig::optimizer, &OptimizerOptions::adamw);
  using A = AdamWOptions;
  const ValueRule beta{.low = 0, .high = 1, .high_is_excluded = true};
  adam.key("adam_beta1", &A::beta1, beta, kTrajectory, "AdamW, first moment");
  adam.key("adam_beta2", &A::beta2, beta, kTrajectory, "AdamW, second moment");
  adam.key(
      "adam_eps",
      &A::eps,
      {.low = 0, .low_is_excluded = true},
      kTrajectory,
      "AdamW, added to the root");
}

// Keys of some optimizers alone: those that `add` adds.
void add_only_with(
    std::vector<ConfigKey>& keys,
    std::initializer_list<OptimizerKind> kinds,
    void (*add)(std::vector<ConfigKey>& keys)) {
  const size_t before = keys.size();
  add(keys);
  for (size_t i = before; i < keys.size(); ++i) {
    keys[i].only_with.name = "optimizer";
    for (const OptimizerKind kind : kinds)
      keys[i].only_with.values.emplace_back(to_string(kind));
  }
}

void add_mup(std::vector<ConfigKey>& keys) {
  const auto mup = training_keys(keys, &TrainingConfig::mup);
  using M = MupOptions;
  mup.key(
      "parametrization",
      &M::parametrization,
      kAny,
      kMeaning,
      "how initial weights and rates depend on the width; with mup the best "
      "rates are about those of mup_base_hidden_size");
  const auto of_mup = [](ConfigKey& key) -> ConfigKey& {
    key.only_with = {
        .name = "parametrization",
        .values = {to_string(Parametrization::kMup)}};
    return key;
  };
  of_mup(mup.key(
             "mup_base_hidden_size",
             &M::base_hidden_size,
             at_least(0),
             kMeaning,
             "mup, width at which it is the standard"))
      .default_note = "must be given";
  of_mup(mup.key(
             "mup_base_head_dim",
             &M::base_head_dim,
             at_least(0),
             kMeaning,
             "mup, width of a head at which attention is the standard's"))
      .default_note = "the model's own";
}

void add_training_optimizer(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  const auto group = training_keys(keys);
  const auto optimizer = training_keys(keys, &TrainingConfig::optimizer);
  const ValueRule natural = at_least(0);
  optimizer.key(
      "optimizer",
      &OptimizerOptions::kind,
      kAny,
      kMeaning,
      "what steps the weights; muon steps matrices, and AdamW the rest");
  using enum OptimizerKind;
  add_only_with(keys, {kAdamW, kMuon, kScheduleFreeAdamW}, add_adam);
  add_only_with(keys, {kMuon}, add_muon);
  add_only_with(keys, {kSgd}, add_sgd);
  add_only_with(keys, {kScheduleFreeAdamW}, add_schedule_free);
  optimizer.key(
      "optimizer_state_dtype",
      &OptimizerOptions::moments,
      kAny,
      kTrajectory,
      "of moments between steps: 4, 2 or about 1 byte for each value; steps "
      "are "
      "float32's");
  optimizer.key(
      "ema_decay",
      &OptimizerOptions::ema_decay,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "moving average of the weights, which is evaluated and saved; 0: none");
  group.key(
      "weight_decay",
      &G::weight_decay,
      natural,
      kTrajectory,
      "decoupled; with sgd a part of the gradient");
  group.key(
      "weight_decay_on",
      &G::weight_decay_on,
      kAny,
      kTrajectory,
      "parameters that decay: all, or matrices (neither norms nor biases)");
}

// The keys of schedules that are said in another way than by steps.
void add_lr_shapes(std::vector<ConfigKey>& keys) {
  using Lr = LrScheduleOptions;
  const auto lr = training_keys(keys, &TrainingConfig::lr);
  const ValueRule fraction{.low = 0, .high = 1};
  only_with_schedule(
      lr.key(
          "warmup_fraction",
          &Lr::warmup_fraction,
          fraction,
          kTrajectory,
          "trapezoid, share of the run's steps that is linear warm-up"),
      LrDecay::kTrapezoid);
  only_with_schedule(
      lr.key(
          "decay_fraction",
          &Lr::decay_fraction,
          fraction,
          kTrajectory,
          "trapezoid, share of the run's steps, its last, in which it falls"),
      LrDecay::kTrapezoid);
  only_with_schedule(
      lr.key(
          "lr_table",
          &Lr::table,
          kAny,
          kTrajectory,
          "table, what learning_rate is multiplied with after so many steps or "
          "tokens, linear in between, such as [{\"step\": 0, \"factor\": "
          "0.01}, {\"step\": 100, \"factor\": 1}]"),
      LrDecay::kTable)
      .default_note = "none";
}

void add_training_schedule(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  const auto group = training_keys(keys);
  const auto lr = training_keys(keys, &TrainingConfig::lr);
  using Lr = LrScheduleOptions;
  const ValueRule natural = at_least(0);
  lr.key(
      "lr_schedule",
      &Lr::decay,
      kAny,
      kTrajectory,
      "learning rate after the warm-up");
  lr.key(
      "warmup_steps",
      &Lr::warmup_steps,
      natural,
      kTrajectory,
      "steps of linear warm-up");
  lr.key(
      "min_learning_rate",
      &Lr::minimum,
      natural,
      kTrajectory,
      "where cosine, linear, wsd and trapezoid end; inverse_sqrt does not "
      "fall below it");
  only_with_schedule(
      lr.key(
          "decay_steps",
          &Lr::decay_steps,
          natural,
          kTrajectory,
          "last steps, in which wsd falls; 0: a tenth of the run's"),
      LrDecay::kWsd);
  add_lr_shapes(keys);
  group
      .key(
          "lr_end",
          &G::lr_end,
          kAny,
          kTrajectory,
          "where cosine, linear, wsd and trapezoid reach min_learning_rate: "
          "one step after the run's last, or at step total_train_steps, where "
          "inverse_sqrt is a step ahead too")
      .default_note = "after_last_step; a continued run's as it was saved";
  group.key(
      "grad_clip",
      &G::grad_clip,
      natural,
      kTrajectory,
      "largest global gradient norm; 0: no clipping");
}

void add_routers(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  const auto group = training_keys(keys);
  const auto losses = training_keys(keys, &G::router_losses);
  const ValueRule natural = at_least(0);
  losses.key(
      "router_aux_loss",
      &RouterLosses::balance,
      natural,
      kTrajectory,
      "of models with experts: weight of the loss for uneven use of experts");
  group.key(
      "router_aux_loss_over",
      &G::router_aux_loss_over,
      kAny,
      kTrajectory,
      "of models with experts: where router_aux_loss counts the use of "
      "experts: in each sequence, or in the whole global batch of the step "
      "before");
  losses.key(
      "router_z_loss",
      &RouterLosses::z,
      natural,
      kTrajectory,
      "of models with experts: weight of the loss for large router logits");
  group.key(
      "expert_capacity_factor",
      &G::expert_capacity_factor,
      natural,
      kTrajectory,
      "of models with experts: of each sequence an expert takes the first "
      "tokens that chose it, up to this factor times their number if all were "
      "used evenly, and drops the others; 0: it takes all. In training alone");
  group.key(
      "router_bias_rate",
      &G::router_bias_rate,
      natural,
      kTrajectory,
      "of routers with a bias (DeepSeek-V3's): by how much a step moves it");
}

void add_training_checks(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  const auto group = training_keys(keys);
  const ValueRule count = at_least(1);
  const ValueRule natural = at_least(0);
  group.key(
      "on_non_finite",
      &G::on_non_finite,
      kAny,
      kTrajectory,
      "what to do in a step whose loss or gradient is not finite");
  group.key(
      "max_skipped_steps",
      &G::max_skipped_steps,
      count,
      kFree,
      "skipped steps in a row after which a run with on_non_finite=skip stops");
  group.key(
      "check_replicas_every",
      &G::check_replicas_every,
      natural,
      kFree,
      "steps between comparisons of the replicas' bits, which find memory that "
      "fails; 0: none");
  group.key(
      "check_gradients_every",
      &G::check_gradients_every,
      natural,
      kFree,
      "steps between those whose gradients are computed twice and compared bit "
      "for bit, which finds processors that fail; 0: none");
  group.key(
      "loss_spike_limit",
      &G::loss_spike_limit,
      natural,
      kFree,
      "standard deviations above the last losses' mean from which a loss is "
      "reported as a spike; 0: none is");
  group.key(
      "step_timeout_seconds",
      &G::step_timeout_seconds,
      {.low = 0, .high = 1e6},
      kFree,
      "how long a step may take before its rank ends; 0: no limit");
  group.key(
      "eval_every",
      &G::eval_every,
      natural,
      kFree,
      "steps between evaluations on held-out text; 0: none");
  group.key(
      "eval_steps",
      &G::eval_steps,
      count,
      kFree,
      "batches of an evaluation, as far as the held-out part has so many");
  group.key(
      "recompute",
      &G::recompute,
      kAny,
      kFree,
      "activations to recompute in backward (attention, or whole blocks); a "
      "list has one per stage");
}

}  // namespace

// They are printed in this order.
void add_training(std::vector<ConfigKey>& keys) {
  add_training_trajectory(keys);
  add_loss(keys);
  add_training_optimizer(keys);
  add_mup(keys);
  add_training_schedule(keys);
  add_routers(keys);
  add_training_checks(keys);
}

}  // namespace brigade
