// One run, as its JSON file describes it: picotron's config.json, with further
// keys in the same groups. A component's option struct is a member here, or the
// base of a group; config/keys.cpp says which key is which member of it. The
// other members are named exactly as their keys.
//
// The file, the command line's group.key=value overrides and the defaults are
// put together by load_train_config(), which reports every problem at once.
// docs/config.md lists all keys; `brigade train --help-config` prints them.
//
// No libtorch, no environment; files: the config itself, and the model's
// config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/choices.h"
#include "brigade/model_spec/activation_recompute.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/options/adapter.h"
#include "brigade/options/backend.h"
#include "brigade/options/dataset.h"
#include "brigade/options/grad_sync_algorithm.h"
#include "brigade/options/low_communication.h"
#include "brigade/options/mup.h"
#include "brigade/options/optimizer.h"
#include "brigade/options/powersgd.h"
#include "brigade/options/preference.h"
#include "brigade/options/router_balance.h"
#include "brigade/options/verify_level.h"
#include "brigade/schedule/bucket_plan.h"
#include "brigade/schedule/fragment_schedule.h"
#include "brigade/schedule/lr_schedule.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/topology/gpus.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

struct DistributedConfig {
  // tp_size, cp_size, ... dp is 0 in a config that has not been laid out: not
  // given, so world size / (tp * pp * cp). load_train_config() fills it in.
  ParallelDims dims{.dp = 0};
  ScheduleKind pp_engine = ScheduleKind::kOneFOneB;
  std::optional<Backend> backend;  // absent (""): what use_cpu implies
  // Once loaded: false on GPUs; absent or true on CPUs.
  std::optional<bool> use_cpu;
  GradSyncAlgorithm grad_sync = GradSyncAlgorithm::kBucketed;
  GradWire grad_wire = GradWire::kFp32;  // of gradients between ranks
  PowerSgdOptions powersgd;              // exact_steps stays 0
  // Whether gradients are summed within each host before they go between hosts.
  HierarchyChoice hierarchical_reduction = HierarchyChoice::kAuto;
  double bucket_cap_mb = 25;  // MiB of gradient per bucket
  BucketOrder bucket_order = BucketOrder::kReverse;
  int zero_stage = 0;  // what dp x cp ranks divide between them
  // Low-communication training (docs/low_communication.md): local_steps 0: off,
  // else groups of dp ranks train by themselves for so many steps.
  FragmentSchedule rounds{.local_steps = 0};
  int local_groups = 0;        // 0: one per dp rank
  OuterFragmentOptions outer;  // its kernels are model.kernels
  bool sequence_parallel = false;
  int pp_virtual_stages = 1;  // per rank; above 1: interleaved_1f1b
  std::optional<std::vector<int>> pp_layers;  // per stage; absent: by cost
  bool check_collectives = false;             // compare signatures across ranks
  int64_t timeout_seconds = 180;              // per collective

  // Groups of data-parallel ranks that train apart from one another; 1 without
  // local_steps.
  int replica_groups() const {
    if (rounds.local_steps == 0)
      return 1;
    return local_groups == 0 ? dims.dp : local_groups;
  }
};

struct ModelConfig {
  // A folder with config.json, a path to one, or an id such as
  // HuggingFaceTB/SmolLM-135M. Empty when `config` is given.
  std::string name;
  nlohmann::json config;  // inline Hugging Face config; null: not given
  std::optional<int64_t> num_hidden_layers;  // overrides of the model's own
  std::optional<int64_t> num_attention_heads;
  std::optional<int64_t> num_key_value_heads;
  ModelDtype dtype = ModelDtype::kFloat32;
  ops::Kernels kernels = ops::Kernels::kAuto;
  WeightInit init = WeightInit::kRandom;
  std::optional<bool> use_flash_attention;  // ignored: always fused
  std::optional<bool> use_fused_adam;       // ignored: always fused

  // Not a key: `config` or the file `name` points at, with the overrides.
  // Absent when `name` is an id that LoadOptions::find_model did not find; then
  // call resolve_model() once it is there.
  std::optional<DecoderConfig> decoder;
  // Not a key: the Hugging Face config that `decoder` was read from, as it was
  // written.
  nlohmann::json source;
  // Not a key: the folder of the model's files (weights, tokenizer); empty
  // with an inline `config`, or when an id was not found.
  std::filesystem::path folder;
};

struct TrainingConfig {
  int64_t seed = 42;
  // But for its end, which lr_end and the run say, and for its tokens.
  LrScheduleOptions lr;
  MupOptions mup;
  int64_t total_train_steps = 200;
  int64_t seq_length = 1024;                // T, tokens
  int64_t micro_batch_size = 1;             // sequences per rank of dp
  int64_t gradient_accumulation_steps = 1;  // micro-batches per step
  std::optional<int64_t> num_samples;       // ignored: a dataset is used whole
  std::optional<int64_t> max_tokens;        // no step goes beyond
  LossOptions loss;
  OptimizerOptions optimizer;  // its kernels are model.kernels
  double weight_decay = 0.01;
  WeightDecayOn weight_decay_on = WeightDecayOn::kAll;
  // Absent: kAfterLastStep, or as the run that is continued was saved.
  std::optional<LrEnd> lr_end;
  double grad_clip = 0;  // largest global norm; 0: no clipping
  // Models with experts: what is added to the loss for uneven use of the
  // experts, and for large logits of the routers (docs/experts.md).
  RouterLosses router_losses{.balance = 0.01};
  BalanceOver router_aux_loss_over = BalanceOver::kSequence;
  // Models with experts: how many tokens of a sequence each takes in training,
  // over that of even use; 0: all that choose it.
  double expert_capacity_factor = 0;
  // Routers with a bias: by how much a step moves it.
  double router_bias_rate = 1e-3;
  OnNonFinite on_non_finite = OnNonFinite::kStop;
  int64_t max_skipped_steps = 10;    // in a row, before the run stops after all
  int64_t check_replicas_every = 0;  // steps; 0: never
  int64_t check_gradients_every = 0;  // steps; 0: never
  double loss_spike_limit = 0;        // standard deviations; 0: none is flagged
  int64_t step_timeout_seconds = 1800;  // of one step; 0: as long as it takes
  int64_t eval_every = 0;               // steps; 0: never
  int64_t eval_steps = 8;               // batches of one evaluation
  // One entry for all stages, or one entry per stage.
  std::vector<Recompute> recompute = {Recompute::kNone};

  Recompute recompute_of_stage(int stage) const {
    return recompute.size() == 1 ? recompute[0]
                                 : recompute.at(static_cast<size_t>(stage));
  }
};

// The weight of a part once so many steps, or tokens, were trained on.
struct MixtureWeight {
  int64_t after = 0;
  double weight = 1;
  bool operator==(const MixtureWeight&) const = default;
};

// One part of a weighted mixture.
struct MixturePart {
  std::string name;
  double weight = 1;  // relative to the others
  // Weights by time, in place of `weight`, linear in between; empty: it never
  // changes.
  std::vector<MixtureWeight> weights = {};
  PointUnit unit = PointUnit::kSteps;  // of `weights`
  bool operator==(const MixturePart&) const = default;
};

// The group "dataset"; the base has the keys that data/ reads unchanged.
struct DatasetConfig : DatasetOptions {
  // Path of a prepared dataset; empty with `mixture`, and once loaded with
  // `text`, which takes its place.
  std::string name;
  // Files and folders of text (data/text_tokens.h); absent: none.
  std::optional<std::vector<std::string>> text;
  std::string text_key = "text";           // of .jsonl, or a table's column
  bool prepend_bos = false;                // to each document of `text`
  std::string python = "python3";          // that reads tables of `text`
  std::optional<std::string> subset_name;  // ignored
  std::string split = "train";             // ignored
  int64_t num_workers = 0;                 // ignored: a thread of its own
  int64_t num_proc = 1;                    // ignored: `brigade prepare`'s
  bool eval_parts = false;                 // of a mixture, each by itself too
  double eval_fraction = 0.02;  // held out when training.eval_every > 0
  std::vector<MixturePart> mixture;
  // At document boundaries; once loaded true with packing.
  bool reset_attention = false;
};

struct CheckpointConfig {
  std::string save_dir;        // absent: <logging.run_dir>/checkpoints
  int64_t save_frequency = 0;  // steps; 0: only at the end
  int64_t save_seconds = 0;    // seconds between checkpoints; 0: not by time
  int64_t keep_last = 0;       // newest checkpoints to keep; 0: all
  int64_t keep_every = 0;      // and those of steps that this divides; 0: none
  bool async = true;           // write while training goes on
  // "": a new run. A checkpoint to continue, or "auto": the newest valid one of
  // save_dir.
  std::string load_path;
  VerifyLevel verify = VerifyLevel::kFull;
  // Keys that may differ from those of the checkpoint that is continued.
  std::optional<std::vector<std::string>> allow_changes;
};

struct LoggingConfig {
  bool tensorboard = false;
  bool use_wandb = false;       // writes what `wandb sync` takes: tfevents
  int64_t log_frequency = 1;    // steps per line
  std::string prometheus_file;  // for its node exporter; empty: none
  std::string project_name = "brigade";  // ignored
  std::string run_name = "run";
  std::string run_dir;                          // absent: runs/<run_name>
  std::optional<std::vector<int>> trace_steps;  // absent: none is traced
};

// Strings, as in picotron.
struct EnvironmentConfig {
  std::optional<std::string> OMP_NUM_THREADS;         // CPU threads of a rank
  std::optional<std::string> TOKENIZERS_PARALLELISM;  // ignored
  std::optional<std::string> FLASH_ATTEN;             // ignored
  std::optional<std::string> HF_TOKEN;  // ignored; never printed or saved
};

// Given by the command line's options; no part of the file or of the hash.
struct RunOptions {
  bool overwrite = false;       // replace a run that run_dir holds
  bool report_overlap = false;  // print what communication cost, by bucket
};

struct TrainConfig {
  DistributedConfig distributed;
  ModelConfig model;
  AdapterOptions adapter;
  TrainingConfig training;
  DatasetConfig dataset;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  EnvironmentConfig environment;
  RunOptions run;

  bool trains_on_gpus() const { return distributed.use_cpu == false; }
  const ParallelDims& parallel_dims() const { return distributed.dims; }
};

// Where a value comes from.
enum class ValueOrigin { kDefault, kFile, kCommandLine, kEnvironment };
template <>
inline constexpr std::array kChoices<ValueOrigin>{
    Choice{ValueOrigin::kDefault, "default"},
    Choice{ValueOrigin::kFile, "file"},
    Choice{ValueOrigin::kCommandLine, "command line"},
    Choice{ValueOrigin::kEnvironment, "environment"}};

// One key as it was resolved.
struct ResolvedValue {
  std::string key;       // "distributed.tp_size"
  nlohmann::json value;  // secrets as "***"
  ValueOrigin origin = ValueOrigin::kDefault;
  std::string note;  // how a default came about: "runs/<run_name>"
};

struct LoadedConfig {
  TrainConfig config;
  std::vector<ResolvedValue> values;  // every key, in the order of the docs
  // Keys that were given but mean nothing here, each with the reason:
  // "/model/use_flash_attention: attention is always fused".
  std::vector<std::string> ignored;
};

// group.key=value, with where it came from.
struct ConfigOverride {
  std::string text;
  ValueOrigin origin = ValueOrigin::kCommandLine;
};

// The folder of a model's files for an id, if this machine has it; downloads
// nothing.
using FindModel =
    std::function<std::optional<std::filesystem::path>(const std::string& id)>;

struct LoadOptions {
  std::filesystem::path path;             // the config file
  std::vector<ConfigOverride> overrides;  // later ones win
  int world_size = 1;
  FindModel find_model;  // absent: no id is found
  Gpus gpus = {};        // of this host
};

// Reads, overrides, checks, fills in. Throws ConfigError with every problem
// found: syntax (line and column), unknown and duplicate keys (with the nearest
// valid one), types, ranges, layouts that cannot be; DataError for a model's
// config.json that is not JSON.
LoadedConfig load_train_config(const LoadOptions& options);

// The same from text; options.path stands for the file in messages.
LoadedConfig parse_train_config(
    const std::string& json_text,
    const LoadOptions& options);

// What tokenizes dataset.text, as load_tokenizer() takes it: the one that is
// named, the model's own, or "bytes".
std::string tokenizer_of_text(const TrainConfig& config);

// Sequences and tokens of one optimizer step over all ranks.
int64_t sequences_per_step(const TrainConfig& config);
int64_t tokens_per_step(const TrainConfig& config);

// The step that a run ends with which has done `steps` steps and seen `tokens`
// tokens: total_train_steps, or before max_tokens would be exceeded.
int64_t
last_step(const TrainConfig& config, int64_t steps = 0, int64_t tokens = 0);

// The config as a file that gives the same run again: defaults written out,
// secrets left out. For the run folder.
nlohmann::json to_json(const TrainConfig& config);

// What must be the same on all ranks: to_json() without what may differ between
// ranks or restarts (environment.*).
nlohmann::json config_facts(const TrainConfig& config);
// The hash of config_facts(): stable over the order of keys and over what was
// written or defaulted; ranks compare it at start. 16 hexadecimal digits.
std::string config_hash(const TrainConfig& config);

// What is possible but hardly meant: sequences longer than the model's
// positions, a warm-up longer than the run, a bucket larger than the model.
// Complete once config.model.decoder is known. One sentence each.
std::vector<std::string> find_warnings(const LoadedConfig& loaded);

// Every key with value and origin, in aligned columns, for --print-config.
std::string describe_values(const LoadedConfig& loaded);

// Every key with its type, default and help, as text or as a Markdown table.
std::string describe_keys();
std::string describe_keys_as_markdown();

// The Hugging Face config with model.num_hidden_layers, num_attention_heads and
// num_key_value_heads put in place of its own, for parse_decoder_config().
nlohmann::json with_model_overrides(
    const ModelConfig& model,
    nlohmann::json hugging_face_config);

// Reads FOLDER/config.json into config.model.decoder, sets config.model.folder,
// and checks it against the
// layout. Throws ConfigError with every problem found.
void resolve_model(TrainConfig& config, const std::filesystem::path& folder);

// Whether the model fits the run's keys, and heads, kv heads and layers the
// layout. Adds one message per problem; where the layout is at fault, the last
// names the nearest layouts that fit, if any do.
void validate_model_layout(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems);

}  // namespace brigade
