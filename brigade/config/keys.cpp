// To add a key, say training.my_key:
//   1. a member of its group in train_config.h, whose initial value is the
//      default;
//   2. one entry in the group's function below (of `distributed`, in
//      distributed_keys.cpp): name, member, range, help. If the default depends
//      on other values, say how in .default_note.
// Everything else reads this table: parsing and its messages, command-line
// overrides, --print-config, the hash, the saved config, --help-config. Put the
// output of `brigade train --help-config=markdown` into docs/config.md; a test
// compares them.
//
// A key that is one of several texts has an enum as its member: the enum, its
// to_string() and its list of choices go into choices.h, and its range is
// derived from them. Rules that involve several keys are in train_config.cpp
// (check_...), layout_rules.cpp or data_parallel_rules.cpp. A value that a
// library struct needs is carried there by train/from_config.cpp alone.
#include "brigade/config/keys.h"

#include <algorithm>

#include "brigade/config/group_keys.h"
#include "brigade/json/nearest.h"

namespace brigade {

namespace {

void add_model(std::vector<ConfigKey>& keys) {
  using G = ModelConfig;
  GroupKeys<G> group(keys, "model", &TrainConfig::model);
  group.key(
      "name",
      &G::name,
      kAny,
      "folder with config.json, path of one, or Hugging Face id");
  group.key("config", &G::config, kAny, "Hugging Face config.json, inline");
  const ValueRule count = at_least(1);
  for (const auto& [name, member] :
       {std::pair{"num_hidden_layers", &G::num_hidden_layers},
        std::pair{"num_attention_heads", &G::num_attention_heads},
        std::pair{"num_key_value_heads", &G::num_key_value_heads}})
    group.key(name, member, count, "in place of the model's own").default_note =
        "the model's own";
  group.key(
      "dtype",
      &G::dtype,
      kAny,
      "of weights and activations; gradients and optimizer are float32");
  group.key(
      "kernels",
      &G::kernels,
      kAny,
      "that compute the model: Brigade's own for CPUs (cpu), libtorch's for "
      "any "
      "device (aten), or cpu on CPUs and aten elsewhere (auto)");
  group.key(
      "init", &G::init, kAny, "weights from the seed, or from model.name");
  group.key("use_flash_attention", &G::use_flash_attention, kAny, "ignored")
      .ignored_because = "attention never materialises its scores anyway";
  group.key("use_fused_adam", &G::use_fused_adam, kAny, "ignored")
      .ignored_because = "AdamW is always fused";
}

// The keys of a group are printed in this order, so its functions have one too.
void add_training(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  GroupKeys<G> group(keys, "training", &TrainConfig::training);
  const ValueRule count = at_least(1);
  const ValueRule natural = at_least(0);
  group.key("seed", &G::seed, natural, "of weights and data order");
  group.key("learning_rate", &G::learning_rate, natural, "the highest");
  group.key(
      "total_train_steps", &G::total_train_steps, natural, "optimizer steps");
  group.key("seq_length", &G::seq_length, count, "tokens of a sequence");
  group.key(
      "micro_batch_size",
      &G::micro_batch_size,
      count,
      "sequences of a micro-batch on each rank of dp");
  group.key(
      "gradient_accumulation_steps",
      &G::gradient_accumulation_steps,
      count,
      "micro-batches of a step on each rank of dp");
  group.key("num_samples", &G::num_samples, count, "ignored").ignored_because =
      "a prepared dataset is used whole; training.max_tokens limits a run";
  group.key(
      "max_tokens",
      &G::max_tokens,
      count,
      "train no more tokens than this: whole steps, and the schedule ends "
      "where the run ends");
}

void add_training_optimizer(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  GroupKeys<G> group(keys, "training", &TrainConfig::training);
  const ValueRule natural = at_least(0);
  const ValueRule beta{.low = 0, .high = 1, .high_is_excluded = true};
  group.key("adam_beta1", &G::adam_beta1, beta, "AdamW, first moment");
  group.key("adam_beta2", &G::adam_beta2, beta, "AdamW, second moment");
  group.key(
      "adam_eps",
      &G::adam_eps,
      {.low = 0, .low_is_excluded = true},
      "AdamW, added to the root");
  group.key("weight_decay", &G::weight_decay, natural, "AdamW, decoupled");
  group.key(
      "weight_decay_on",
      &G::weight_decay_on,
      kAny,
      "parameters that decay: all, or matrices (neither norms nor biases)");
  group.key(
      "lr_schedule", &G::lr_schedule, kAny, "learning rate after the warm-up");
  group.key(
      "warmup_steps", &G::warmup_steps, natural, "steps of linear warm-up");
  group.key(
      "min_learning_rate",
      &G::min_learning_rate,
      natural,
      "where cosine, linear and wsd end");
  group.key(
      "decay_steps",
      &G::decay_steps,
      natural,
      "last steps, in which wsd falls; 0: a tenth of the run's");
  group
      .key(
          "lr_end",
          &G::lr_end,
          kAny,
          "where cosine, linear and wsd reach min_learning_rate: one step "
          "after the run's last, or at step total_train_steps")
      .default_note = "after_last_step; a continued run's as it was saved";
  group.key(
      "grad_clip",
      &G::grad_clip,
      natural,
      "largest global gradient norm; 0: no clipping");
}

void add_training_checks(std::vector<ConfigKey>& keys) {
  using G = TrainingConfig;
  GroupKeys<G> group(keys, "training", &TrainConfig::training);
  const ValueRule count = at_least(1);
  const ValueRule natural = at_least(0);
  group.key(
      "on_non_finite",
      &G::on_non_finite,
      kAny,
      "what to do in a step whose loss or gradient is not finite");
  group.key(
      "max_skipped_steps",
      &G::max_skipped_steps,
      count,
      "skipped steps in a row after which a run with on_non_finite=skip stops");
  group.key(
      "check_replicas_every",
      &G::check_replicas_every,
      natural,
      "steps between comparisons of the replicas' bits, which find memory that "
      "fails; 0: none");
  group.key(
      "check_gradients_every",
      &G::check_gradients_every,
      natural,
      "steps between those whose gradients are computed twice and compared bit "
      "for bit, which finds processors that fail; 0: none");
  group.key(
      "loss_spike_limit",
      &G::loss_spike_limit,
      natural,
      "standard deviations above the last losses' mean from which a loss is "
      "reported as a spike; 0: none is");
  group.key(
      "step_timeout_seconds",
      &G::step_timeout_seconds,
      {.low = 0, .high = 1e6},
      "how long a step may take before its rank ends; 0: for ever");
  group.key(
      "eval_every",
      &G::eval_every,
      natural,
      "steps between evaluations on held-out text; 0: none");
  group.key("eval_steps", &G::eval_steps, count, "batches of an evaluation");
  group.key(
      "recompute",
      &G::recompute,
      kAny,
      "activations to recompute in backward (attention, or whole blocks); a "
      "list has one per stage");
}

void add_dataset(std::vector<ConfigKey>& keys) {
  using G = DatasetConfig;
  GroupKeys<G> group(keys, "dataset", &TrainConfig::dataset);
  group.key("name", &G::name, kAny, "path of a prepared dataset");
  group.key("tokenizer", &G::tokenizer, kAny, "path of a tokenizer, or 'bytes'")
      .default_note = "the dataset's";
  group.key("subset_name", &G::subset_name, kAny, "ignored").ignored_because =
      "dataset.name is a path";
  group.key("split", &G::split, kAny, "ignored").ignored_because =
      "dataset.name is a path";
  group.key("num_workers", &G::num_workers, at_least(0), "ignored")
      .ignored_because = "batches are prepared on a thread of their own";
  group.key("num_proc", &G::num_proc, at_least(1), "ignored").ignored_because =
      "text is tokenized by `brigade prepare`, on all cores";
  group.key("shuffle", &G::shuffle, kAny, "shuffle each epoch from the seed");
  group.key(
      "eval_fraction",
      &G::eval_fraction,
      {.low = 0, .high = 1, .low_is_excluded = true, .high_is_excluded = true},
      "share of the dataset held out when training.eval_every > 0");
  group.key(
      "mixture",
      &G::mixture,
      kAny,
      "several datasets with weights, in place of dataset.name");
  group.key(
      "document_epochs",
      &G::document_epochs,
      kAny,
      "documents change places in every epoch, instead of windows alone");
  group.key(
      "reset_attention",
      &G::reset_attention,
      kAny,
      "attention does not cross document boundaries");
}

void add_checkpoint(std::vector<ConfigKey>& keys) {
  using G = CheckpointConfig;
  GroupKeys<G> group(keys, "checkpoint", &TrainConfig::checkpoint);
  group.key("save_dir", &G::save_dir, kAny, "folder of checkpoints")
      .default_note = "<logging.run_dir>/checkpoints";
  group.key(
      "save_frequency",
      &G::save_frequency,
      at_least(0),
      "steps between checkpoints; 0: only at the end");
  group.key(
      "save_seconds",
      &G::save_seconds,
      at_least(0),
      "seconds between checkpoints; 0: not by time");
  group.key(
      "keep_last",
      &G::keep_last,
      at_least(0),
      "newest checkpoints to keep; 0: all");
  group.key(
      "keep_every",
      &G::keep_every,
      at_least(0),
      "with keep_last, keep those of every so many steps too; 0: none");
  group.key(
      "async", &G::async, kAny, "write checkpoints while training goes on");
  group.key(
      "load_path",
      &G::load_path,
      kAny,
      "checkpoint to continue, or 'auto': the newest valid one of save_dir");
  group.key(
      "verify",
      &G::verify,
      kAny,
      "what is verified of a checkpoint before it is loaded: the SHA-256 of "
      "each file, or its size");
  group
      .key(
          "allow_changes",
          &G::allow_changes,
          kAny,
          "keys that may differ from the continued checkpoint's, such as "
          "[\"training.seed\"]")
      .default_note = "none";
}

void add_logging(std::vector<ConfigKey>& keys) {
  using G = LoggingConfig;
  GroupKeys<G> group(keys, "logging", &TrainConfig::logging);
  group.key(
      "tensorboard",
      &G::tensorboard,
      kAny,
      "write <run_dir>/events.out.tfevents.* for TensorBoard");
  group.key(
      "use_wandb",
      &G::use_wandb,
      kAny,
      "write the same, which `wandb sync` uploads");
  group.key(
      "log_frequency",
      &G::log_frequency,
      at_least(1),
      "steps between two lines of the log; metrics.jsonl has them all");
  group
      .key(
          "prometheus_file",
          &G::prometheus_file,
          kAny,
          "a text file of the latest values for Prometheus' node exporter "
          "(*.prom), replaced with each line of the log")
      .default_note = "none is written";
  group.key("project_name", &G::project_name, kAny, "ignored").ignored_because =
      "it names a project of Weights & Biases";
  group.key("run_name", &G::run_name, kAny, "name of this run");
  group
      .key(
          "run_dir",
          &G::run_dir,
          kAny,
          "folder of this run's files; {n} in it becomes the lowest free "
          "number")
      .default_note = "runs/<logging.run_name>";
  group
      .key(
          "trace_steps",
          &G::trace_steps,
          at_least(1),
          "steps of which to write <run_dir>/trace-rank<R>.json, a Chrome "
          "trace, such as [3, 4]")
      .default_note = "none";
}

void add_environment(std::vector<ConfigKey>& keys) {
  using G = EnvironmentConfig;
  GroupKeys<G> group(keys, "environment", &TrainConfig::environment);
  group
      .key(
          "OMP_NUM_THREADS", &G::OMP_NUM_THREADS, kAny, "CPU threads of a rank")
      .default_note = "CPUs shared out between the ranks of a machine";
  group
      .key(
          "TOKENIZERS_PARALLELISM", &G::TOKENIZERS_PARALLELISM, kAny, "ignored")
      .ignored_because = "training reads tokens, not text";
  group.key("FLASH_ATTEN", &G::FLASH_ATTEN, kAny, "ignored").ignored_because =
      "attention never materialises its scores anyway";
  ConfigKey& token = group.key("HF_TOKEN", &G::HF_TOKEN, kAny, "ignored");
  token.ignored_because =
      "a secret does not belong in a file; set it in the process environment";
  token.is_secret = true;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> all;
    add_distributed(all);
    add_model(all);
    add_training(all);
    add_training_optimizer(all);
    add_training_checks(all);
    add_dataset(all);
    add_checkpoint(all);
    add_logging(all);
    add_environment(all);
    return all;
  }();
  return keys;
}

const ConfigKey* find_config_key(
    std::string_view group,
    std::string_view name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.group == group && key.name == name)
      return &key;
  }
  return nullptr;
}

bool is_config_group(std::string_view group) {
  const auto& keys = config_keys();
  return std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return key.group == group;
  });
}

const ConfigKey& nearest_config_key(
    std::string_view group,
    std::string_view name) {
  // Those of the group first: the first of equally near ones wins.
  std::vector<const ConfigKey*> keys;
  std::vector<std::string> names;
  for (const bool is_in_group : {true, false}) {
    for (const ConfigKey& key : config_keys()) {
      if ((key.group == group) == is_in_group) {
        keys.push_back(&key);
        names.push_back(key.name);
      }
    }
  }
  return *keys[nearest_name(name, names)];
}

}  // namespace brigade
