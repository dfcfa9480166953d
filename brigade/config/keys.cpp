// To add a key, say training.my_key:
//   1. a member of the option struct of the component that it is for (options/,
//      schedule/), or of its group in train_config.h where the config alone
//      knows it; its initial value is the default;
//   2. one entry in the group's function below (of `distributed` and
//      `training`, in distributed_keys.cpp and training_keys.cpp): name,
//      member, range, what another value means for a run that is continued,
//      help. If the default depends on other values, say how in .default_note;
//      if it means something beside some choices of another key alone, say so
//      in .only_with;
//   3. `make config-docs`, which writes docs/config.md.
// Everything else reads this table: parsing and its messages, command-line
// overrides, --print-config, the hash, the saved config, the rules of resuming,
// completion, --help-config.
//
// A key that is one of several texts has an enum as its member, whose names are
// a table beside it (options/choice.h). Rules that involve several keys are in
// train_config.cpp (check_...) or one of the *_rules.cpp.
#include "brigade/config/keys.h"

#include <algorithm>

#include "brigade/config/group_keys.h"
#include "brigade/json/nearest.h"

namespace brigade {

namespace {

using enum Resume;

void add_model(std::vector<ConfigKey>& keys) {
  using G = ModelConfig;
  const auto group = group_keys(keys, "model", &TrainConfig::model);
  group.key(
      "name",
      &G::name,
      kAny,
      kFree,
      "folder with config.json, path of one, or Hugging Face id");
  group.key(
      "config", &G::config, kAny, kFree, "Hugging Face config.json, inline");
  const ValueRule count = at_least(1);
  for (const auto& [name, member] :
       {std::pair{"num_hidden_layers", &G::num_hidden_layers},
        std::pair{"num_attention_heads", &G::num_attention_heads},
        std::pair{"num_key_value_heads", &G::num_key_value_heads}})
    group.key(name, member, count, kFree, "in place of the model's own")
        .default_note = "the model's own";
  group.key(
      "dtype",
      &G::dtype,
      kAny,
      kMeaning,
      "of weights and activations; gradients and optimizer are float32");
  group.key(
      "kernels",
      &G::kernels,
      kAny,
      kFree,
      "that compute the model: Brigade's own for CPUs (cpu), libtorch's for "
      "any device (aten), or Brigade's own on CPUs and NVIDIA's GPUs, and aten "
      "elsewhere (auto)");
  group.key(
      "init",
      &G::init,
      kAny,
      kFree,
      "weights from the seed, or from model.name");
  group
      .key(
          "use_flash_attention",
          &G::use_flash_attention,
          kAny,
          kFree,
          "ignored")
      .ignored_because = "attention never keeps all of its scores anyway";
  group.key("use_fused_adam", &G::use_fused_adam, kAny, kFree, "ignored")
      .ignored_because = "AdamW is always fused";
}

void add_adapter(std::vector<ConfigKey>& keys) {
  using G = AdapterOptions;
  const auto group = group_keys(keys, "adapter", &TrainConfig::adapter);
  group.key(
      "rank",
      &G::rank,
      at_least(0),
      kMeaning,
      "of the low-rank adapters (LoRA) that train in place of the model; 0: "
      "the model trains");
  group.key(
      "alpha",
      &G::alpha,
      {.low = 0, .low_is_excluded = true},
      kMeaning,
      "an adapter's output is multiplied by alpha / rank");
  group.key(
      "use_rslora",
      &G::use_rslora,
      kAny,
      kMeaning,
      "multiply by alpha / sqrt(rank) instead");
  group.key(
      "dropout",
      &G::dropout,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "share of an adapter's inputs that are zero in a training step");
  group.key(
      "use_dora",
      &G::use_dora,
      kAny,
      kMeaning,
      "magnitudes of the adapted weights' rows train beside them (DoRA)");
  group.key(
      "targets",
      &G::targets,
      kAny,
      kMeaning,
      "the linears with an adapter: ends of their names, or 'all-linear'");
}

void add_dataset(std::vector<ConfigKey>& keys) {
  using G = DatasetConfig;
  const auto group = group_keys(keys, "dataset", &TrainConfig::dataset);
  group.key("name", &G::name, kAny, kMeaning, "path of a prepared dataset");
  group
      .key(
          "tokenizer",
          &G::tokenizer,
          kAny,
          kFree,
          "path of a tokenizer, or 'bytes'")
      .default_note = "the dataset's; of dataset.text the model's, or bytes";
  group.key("subset_name", &G::subset_name, kAny, kFree, "ignored")
      .ignored_because = "dataset.name is a path";
  group.key("split", &G::split, kAny, kFree, "ignored").ignored_because =
      "dataset.name is a path";
  group.key("num_workers", &G::num_workers, at_least(0), kFree, "ignored")
      .ignored_because = "batches are prepared on a thread of their own";
  group.key("num_proc", &G::num_proc, at_least(1), kFree, "ignored")
      .ignored_because = "text is tokenized on all cores";
  group.key(
      "shuffle",
      &G::shuffle,
      kAny,
      kMeaning,
      "shuffle each epoch from the seed");
  group.key(
      "shuffle_block",
      &G::shuffle_block,
      {.low = 0, .high = 1e9},
      kMeaning,
      "windows that change places with one another, block after block, so that "
      "training on dataset.text begins with the first; 0: all");
  group.key(
      "eval_fraction",
      &G::eval_fraction,
      {.low = 0, .high = 1, .low_is_excluded = true, .high_is_excluded = true},
      kFree,
      "share of the dataset held out when training.eval_every > 0");
  group.key(
      "eval_parts",
      &G::eval_parts,
      kAny,
      kFree,
      "evaluate the held-out share of each part of a mixture by itself too");
  group.key(
      "mixture",
      &G::mixture,
      kAny,
      kMeaning,
      "several datasets with weights, which may change over the run, in place "
      "of dataset.name");
}

// How documents become sequences.
void add_documents(std::vector<ConfigKey>& keys) {
  using G = DatasetConfig;
  const auto group = group_keys(keys, "dataset", &TrainConfig::dataset);
  group.key(
      "document_epochs",
      &G::document_epochs,
      kAny,
      kMeaning,
      "documents change places in every epoch, instead of windows alone");
  group.key(
      "reset_attention",
      &G::reset_attention,
      kAny,
      kMeaning,
      "attention does not cross document boundaries; always so with packing");
  group.key(
      "packing",
      &G::packing,
      kAny,
      kMeaning,
      "best_fit: each sequence holds whole documents, and padding that has no "
      "loss; none: documents one after another, cut where a sequence ends");
  group
      .key(
          "long_documents",
          &G::long_documents,
          kAny,
          kMeaning,
          "of packing, documents that are longer than a sequence: an error, "
          "left out, their beginning alone, or pieces apart")
      .only_with = {"packing", {to_string(Packing::kBestFit)}};
  group
      .key(
          "teacher",
          &G::teacher,
          kAny,
          kFree,
          "distillation, the teacher's log-probabilities for the dataset: a "
          "file of `brigade evaluate --top-k`")
      .default_note = "none";
}

// The keys of text that is tokenized while training.
void add_text(std::vector<ConfigKey>& keys) {
  using G = DatasetConfig;
  const auto group = group_keys(keys, "dataset", &TrainConfig::dataset);
  group
      .key(
          "text",
          &G::text,
          kAny,
          kMeaning,
          "files or folders of text (.txt, .jsonl, .parquet, ...), tokenized "
          "while training; in place of dataset.name")
      .default_note = "none";
  group
      .key(
          "text_key",
          &G::text_key,
          kAny,
          kMeaning,
          "of dataset.text, the member of .jsonl or the column with the text")
      .only_with = {"text", {}};
  group
      .key(
          "prepend_bos",
          &G::prepend_bos,
          kAny,
          kMeaning,
          "begin each document of dataset.text with the begin-of-text token")
      .only_with = {"text", {}};
  group
      .key(
          "python",
          &G::python,
          kAny,
          kFree,
          "the Python with PyArrow that reads .parquet of dataset.text")
      .only_with = {"text", {}};
}

void add_checkpoint(std::vector<ConfigKey>& keys) {
  using G = CheckpointConfig;
  const auto group = group_keys(keys, "checkpoint", &TrainConfig::checkpoint);
  group.key("save_dir", &G::save_dir, kAny, kFree, "folder of checkpoints")
      .default_note = "<logging.run_dir>/checkpoints";
  group.key(
      "save_frequency",
      &G::save_frequency,
      at_least(0),
      kFree,
      "steps between checkpoints; 0: only at the end");
  group.key(
      "save_seconds",
      &G::save_seconds,
      at_least(0),
      kFree,
      "seconds between checkpoints; 0: not by time");
  group.key(
      "keep_last",
      &G::keep_last,
      at_least(0),
      kFree,
      "newest checkpoints to keep; 0: all");
  group.key(
      "keep_every",
      &G::keep_every,
      at_least(0),
      kFree,
      "with keep_last, keep those of every so many steps too; 0: none");
  group.key(
      "async",
      &G::async,
      kAny,
      kFree,
      "write checkpoints while training goes on");
  group.key(
      "load_path",
      &G::load_path,
      kAny,
      kFree,
      "checkpoint to continue, or 'auto': the newest valid one of save_dir");
  group.key(
      "verify",
      &G::verify,
      kAny,
      kFree,
      "what is verified of a checkpoint before it is loaded: the SHA-256 of "
      "each file, or its size");
  group
      .key(
          "allow_changes",
          &G::allow_changes,
          kAny,
          kFree,
          "keys that may differ from the continued checkpoint's, such as "
          "[\"training.seed\"]")
      .default_note = "none";
}

void add_logging(std::vector<ConfigKey>& keys) {
  using G = LoggingConfig;
  const auto group = group_keys(keys, "logging", &TrainConfig::logging);
  group.key(
      "tensorboard",
      &G::tensorboard,
      kAny,
      kFree,
      "write <run_dir>/events.out.tfevents.* for TensorBoard");
  group.key(
      "use_wandb",
      &G::use_wandb,
      kAny,
      kFree,
      "write the same, which `wandb sync` uploads");
  group.key(
      "log_frequency",
      &G::log_frequency,
      at_least(1),
      kFree,
      "steps between two lines of the log; metrics.jsonl has them all");
  group
      .key(
          "prometheus_file",
          &G::prometheus_file,
          kAny,
          kFree,
          "a text file of the latest values for Prometheus' node exporter "
          "(*.prom), replaced with each line of the log")
      .default_note = "none is written";
  group.key("project_name", &G::project_name, kAny, kFree, "ignored")
      .ignored_because = "it names a project of Weights & Biases";
  group.key("run_name", &G::run_name, kAny, kFree, "name of this run");
  group
      .key(
          "run_dir",
          &G::run_dir,
          kAny,
          kFree,
          "folder of this run's files; {n} in it becomes the lowest free "
          "number, with checkpoint.load_path=auto the highest of a run with "
          "checkpoints")
      .default_note = "runs/<logging.run_name>";
  group
      .key(
          "trace_steps",
          &G::trace_steps,
          at_least(1),
          kFree,
          "steps of which to write <run_dir>/trace-rank<R>.json, a Chrome "
          "trace, such as [3, 4]")
      .default_note = "none";
}

void add_environment(std::vector<ConfigKey>& keys) {
  using G = EnvironmentConfig;
  const auto group = group_keys(keys, "environment", &TrainConfig::environment);
  group
      .key(
          "OMP_NUM_THREADS",
          &G::OMP_NUM_THREADS,
          kAny,
          kFree,
          "CPU threads of a rank")
      .default_note = "CPUs shared out between the ranks of a machine";
  group
      .key(
          "TOKENIZERS_PARALLELISM",
          &G::TOKENIZERS_PARALLELISM,
          kAny,
          kFree,
          "ignored")
      .ignored_because = "text is tokenized by Brigade itself";
  group.key("FLASH_ATTEN", &G::FLASH_ATTEN, kAny, kFree, "ignored")
      .ignored_because = "attention never keeps all of its scores anyway";
  ConfigKey& token =
      group.key("HF_TOKEN", &G::HF_TOKEN, kAny, kFree, "ignored");
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
    add_adapter(all);
    add_training(all);
    add_dataset(all);
    add_documents(all);
    add_text(all);
    add_checkpoint(all);
    add_logging(all);
    add_environment(all);
    return all;
  }();
  return keys;
}

bool read_saved_group(
    const nlohmann::json& saved,
    std::string_view group,
    TrainConfig& config) {
  const auto values = saved.find(std::string(group));
  if (values == saved.end() || !values->is_object())
    return false;
  bool is_sound = true;
  for (const ConfigKey& key : config_keys()) {
    if (key.group == group && values->contains(key.name) &&
        key.set(config, (*values)[key.name]))
      is_sound = false;
  }
  return is_sound;
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
  return std::ranges::find(keys, group, &ConfigKey::group) != keys.end();
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
