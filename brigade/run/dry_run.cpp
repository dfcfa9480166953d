#include "brigade/run/dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/readable.h"
#include "brigade/config/model_layout.h"
#include "brigade/data/training_data.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/model_spec/active_parameters.h"
#include "brigade/model_spec/optimizer_memory.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/run/model_units.h"
#include "brigade/run/part_use.h"
#include "brigade/run/resume_check.h"
#include "brigade/run/run_options.h"
#include "brigade/safetensors/folder.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {
namespace {

// The parameters of one stage as tp rank 0 holds them.
struct StageParams {
  std::vector<BucketParam> trained;
  std::vector<BucketParam> frozen;
  int64_t optimizer_bytes = 0;  // of their states
  // The experts' part of these, which fewer ranks hold.
  int64_t expert_numel = 0;
  int64_t expert_optimizer_bytes = 0;
  int64_t frozen_expert_numel = 0;
};

StageParams stage_params(const TrainConfig& config, const ModelPart& part) {
  StageParams result;
  const auto rows = list_parameters(description_of(config), part);
  const auto units =
      divide_into_units(rows, part, config.distributed.zero_stage);
  for (const ParameterRow& row : rows) {
    const ParamShard shard = shard_parameter(
        row,
        config.distributed.dims,
        Coordinate{},
        token_layout(config.distributed));
    int64_t numel = 1;
    for (const int64_t size : shard.shape)
      numel *= size;
    (row.trains ? result.trained : result.frozen)
        .push_back(
            {.name = row.name,
             .numel = numel,
             .dtype = row.is_float32 ? to_string(ModelDtype::kFloat32)
                                     : to_string(config.model.dtype),
             .sparse_row_numel =
                 is_row_sparse(row, part) ? shard.shape.back() : 0,
             .has_own_bucket =
                 config.distributed.zero_stage > 0 && !row.tied_head.empty(),
             .unit =
                 config.distributed.zero_stage > 2 ? units.at(row.unit()) : 0,
             // Divided experts are reduced over other ranks.
             .group = row.expert != kNoExpert && config.distributed.dims.ep > 1
                          ? 1
                          : 0});
    if (!row.trains) {
      if (row.expert != kNoExpert)
        result.frozen_expert_numel += numel;
      continue;
    }
    const auto kept = state_bytes(
        row,
        numel,
        config.training.optimizer,
        row.is_float32 ? WeightWidth::k32Bit : weight_width(config));
    result.optimizer_bytes += kept;
    if (row.expert != kNoExpert) {
      result.expert_numel += numel;
      result.expert_optimizer_bytes += kept;
    }
  }
  return result;
}

int64_t numel_of(const std::vector<BucketParam>& params) {
  int64_t numel = 0;
  for (const BucketParam& param : params)
    numel += param.numel;
  return numel;
}

double bytes_of_weight(const BucketParam& param) {
  const int64_t width = param.dtype == to_string(ModelDtype::kBfloat16) ? 2 : 4;
  return static_cast<double>(width * param.numel);
}

double weight_bytes_of(const std::vector<BucketParam>& params) {
  double bytes = 0;
  for (const BucketParam& param : params)
    bytes += bytes_of_weight(param);
  return bytes;
}

// The bytes of this rank, per part: what the ranks of dp x cp divide is
// divided.
struct StateBytes {
  double weights = 0;
  double units = 0;  // ZeRO's stage 3: the two units whole at a time
  double gradients = 0;
  double optimizer = 0;  // moments and, for bf16, the other half of the master
  // On the first rank of each group of low-communication training: common
  // weights, momentum, what is under way, and the errors of a rounded wire.
  double outer = 0;
};

double bytes_of_two_units(const StageParams& params) {
  std::vector<double> bytes(2, 0.0);
  for (const auto* list : {&params.trained, &params.frozen}) {
    for (const BucketParam& param : *list) {
      bytes.resize(
          std::max(bytes.size(), static_cast<size_t>(param.unit) + 1), 0.0);
      bytes[static_cast<size_t>(param.unit)] += bytes_of_weight(param);
    }
  }
  std::sort(bytes.rbegin(), bytes.rend());
  return bytes[0] + bytes[1];
}

StateBytes bytes_of(const TrainConfig& config, const StageParams& stage) {
  const DistributedConfig& distributed = config.distributed;
  const auto params = static_cast<double>(numel_of(stage.trained));
  const double weights =
      weight_bytes_of(stage.trained) + weight_bytes_of(stage.frozen);
  const double ranks = distributed.dims.replicas();
  // What ZeRO leaves a rank of an amount of which some is of experts.
  const auto divided = [&](double all, int64_t of_experts) {
    return (all + static_cast<double>(of_experts) * (distributed.dims.ep - 1)) /
           ranks;
  };
  const bool is_bf16 = config.model.dtype == ModelDtype::kBfloat16;
  const int64_t of_experts = stage.expert_numel + stage.frozen_expert_numel;
  return {
      .weights = distributed.zero_stage >= 3
                     ? divided(weights, of_experts * (is_bf16 ? 2 : 4))
                     : weights,
      .units = distributed.zero_stage >= 3 ? bytes_of_two_units(stage) : 0,
      .gradients =
          4 * (distributed.zero_stage >= 2 ? divided(params, stage.expert_numel)
                                           : params),
      .optimizer = distributed.zero_stage >= 1
                       ? divided(
                             static_cast<double>(stage.optimizer_bytes),
                             stage.expert_optimizer_bytes)
                       : static_cast<double>(stage.optimizer_bytes),
      .outer =
          distributed.rounds.local_steps == 0
              ? 0
              : params *
                    (distributed.outer.wire == WireFormat::kFp32 ? 12 : 16)};
}

// `continued`: the checkpoint that the run begins with, if any.
std::string describe_run(
    const TrainConfig& config,
    const TrainingData& data,
    const std::optional<CheckpointManifest>& continued) {
  const DecoderConfig& decoder = model_of(config);
  const TrainingConfig& training = config.training;
  const int64_t windows_per_step = sequences_per_step(config);
  const int64_t steps = continued ? continued->step : 0;
  const int64_t samples =
      continued ? std::max<int64_t>(0, continued->samples) : 0;
  const int64_t last =
      last_step(config, steps, continued ? continued->tokens : 0);
  const double epochs =
      static_cast<double>(
          samples + std::max<int64_t>(0, last - steps) * windows_per_step) /
      static_cast<double>(std::max<uint64_t>(1, data.training_windows));
  std::string text = fmt::format(
      "layout      {}\n{}\n",
      config.parallel_dims().product(),
      config.parallel_dims().table());
  text += fmt::format(
      "model       {} layers, hidden {}, {} heads, {} kv heads, vocabulary {}, "
      "{} parameters{}\n",
      decoder.num_hidden_layers,
      decoder.hidden_size,
      decoder.num_attention_heads,
      decoder.num_key_value_heads,
      decoder.vocab_size,
      parameter_count(decoder),
      decoder.experts ? fmt::format(
                            ", {} of them per token ({} of {} experts)",
                            active_parameter_count(decoder),
                            decoder.experts->num_experts_per_tok,
                            decoder.experts->num_experts)
                      : "");
  text += fmt::format(
      "step        {} sequences of {} tokens: {} tokens ({} x {} x {})\n",
      windows_per_step,
      training.seq_length,
      tokens_per_step(config),
      config.distributed.dims.batch_parts(),
      training.micro_batch_size,
      training.gradient_accumulation_steps);
  if (data.training_windows == 0) {
    text += fmt::format(
        "data        {} of text, tokenized when training begins\n",
        readable_bytes(static_cast<double>(data.text_bytes)));
  } else {
    text += fmt::format(
        "data        {} tokens, {} windows to train on, {} held out; {} steps "
        "are {:.2f} epochs\n",
        data.num_tokens,
        data.training_windows,
        data.held_out_windows,
        last,
        epochs);
  }
  const std::string evaluation =
      data.held_out ? describe_short_evaluation(
                          config, data.held_out->samples_per_epoch())
                    : "";
  if (!evaluation.empty())
    text += fmt::format("            {}\n", evaluation);
  if (data.packing)
    text += fmt::format(
        "packing     {}\n",
        describe(*data.packing, config.dataset.long_documents));
  const auto uses = count_part_use(config, data, steps, samples);
  if (uses.size() > 1) {
    for (const PartUse& use : uses)
      text += fmt::format("            {}\n", describe(use));
  }
  return text + fmt::format(
                    "run folder  {}\ncheckpoints {}\n",
                    config.logging.run_dir,
                    checkpoint_folder(config).string());
}

std::string describe_warmup(const DistributedConfig& distributed) {
  if (distributed.rounds.warmup_steps == 0)
    return {};
  return fmt::format(
      "after {} steps {}, ",
      distributed.rounds.warmup_steps,
      distributed.rounds.warmup_interval == 1
          ? "of data parallel"
          : fmt::format(
                "in which all take their mean every {}",
                distributed.rounds.warmup_interval));
}

// How groups train apart; empty without low-communication training.
std::string describe_groups(const DistributedConfig& distributed) {
  if (distributed.rounds.local_steps == 0)
    return {};
  return fmt::format(
      "groups      {} of {} dp ranks; {}each of {} fragments is exchanged "
      "every {} steps in {}, merged {} steps later\n",
      distributed.replica_groups(),
      distributed.dims.dp / distributed.replica_groups(),
      describe_warmup(distributed),
      distributed.rounds.fragments,
      distributed.rounds.local_steps,
      to_string(distributed.outer.wire),
      distributed.rounds.delay);
}

std::string describe_buckets(
    const TrainConfig& config,
    const std::vector<BucketParam>& params) {
  const DistributedConfig& distributed = config.distributed;
  if (distributed.grad_sync == GradSyncAlgorithm::kPerParam)
    return fmt::format("one all-reduce per parameter: {}\n", params.size());
  const std::vector<int> order =
      initial_order(distributed.bucket_order, static_cast<int>(params.size()));
  return plan_buckets(params, order, bucket_plan_options(config)).table(params);
}

std::string
describe_stage(const TrainConfig& config, size_t stage, const ModelPart& part) {
  const StageParams params = stage_params(config, part);
  const int64_t frozen = numel_of(params.frozen);
  const StateBytes bytes = bytes_of(config, params);
  const auto mib = [](double value) {
    return value / static_cast<double>(MiB);
  };
  const std::string units =
      bytes.units > 0
          ? fmt::format(
                " and {:.1f} MiB of two units' whole weights", mib(bytes.units))
          : "";
  const std::string outer =
      bytes.outer == 0
          ? ""
          : fmt::format(
                "{:.1f} MiB of common weights, outer momentum and what is "
                "under way on the first rank of a group\n",
                mib(bytes.outer));
  return fmt::format(
             "\nstage {} on pp rank {}: layers [{}, {}){}{}; {} parameters per "
             "rank{}, {:.1f} MiB of weights ({:.1f}), gradients ({:.1f}) and "
             "optimizer state ({:.1f}){}\n",
             stage,
             stage % static_cast<size_t>(config.distributed.dims.pp),
             part.layers.begin,
             part.layers.end,
             part.is_first ? ", embedding" : "",
             part.is_last ? ", head" : "",
             numel_of(params.trained) + frozen,
             frozen > 0
                 ? fmt::format(", of which {} train", numel_of(params.trained))
                 : "",
             mib(bytes.weights + bytes.gradients + bytes.optimizer),
             mib(bytes.weights),
             mib(bytes.gradients),
             mib(bytes.optimizer),
             units) +
         outer + describe_buckets(config, params.trained);
}

}  // namespace

std::string describe_dry_run(
    const TrainConfig& given,
    const TokenScanOptions& scan) {
  TrainConfig config = given;
  number_run_folder(config);
  TrainingDataOptions options = training_data_options(config, scan);
  options.text = TrainingDataOptions::Text::kCheck;
  const TrainingData data = open_training_data(options);
  check_run_folder(config);
  check_prometheus_file(config.logging);
  check_checkpoint_folder(config, checkpoint_bytes(config));
  if (config.model.init == WeightInit::kPretrained)
    static_cast<void>(SafetensorsFolder(config.model.folder));
  const auto continued = check_named_checkpoint(config, data);
  std::string text = describe_run(config, data, continued) +
                     describe_groups(config.distributed);
  const std::vector<ModelPart> parts = stage_parts(config);
  for (size_t stage = 0; stage < parts.size(); ++stage)
    text += describe_stage(config, stage, parts[stage]);
  return text;
}

}  // namespace brigade
