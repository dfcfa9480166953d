#include "brigade/config/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "brigade/config/model_layout.h"
#include "brigade/model_spec/shard.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade {

namespace {

using Problems = std::vector<std::string>;

constexpr size_t kShownLayouts = 3;

// "/distributed/dp_size = 2 * ...": the keys of these axes.
std::string keys_of(const ParallelDims& dims, const std::vector<Axis>& along) {
  std::vector<std::string> keys;
  for (const Axis axis : along)
    keys.push_back(
        fmt::format("/distributed/{} = {}", size_key_of(axis), dims[axis]));
  return fmt::format("{}", fmt::join(keys, " * "));
}

// Neither number may wrap around: a micro-batch's tokens are multiplied by the
// sizes of a model, which 31 bits leave room for, and a step's are the divisor
// of its loss.
void check_token_counts(const TrainConfig& config, Problems& problems) {
  const TrainingConfig& training = config.training;
  int64_t tokens = 0;
  if (__builtin_mul_overflow(
          training.micro_batch_size, training.seq_length, &tokens) ||
      tokens > INT32_MAX) {
    problems.push_back(fmt::format(
        "[config] /training/micro_batch_size = {} * /training/seq_length = {} "
        "are more tokens than the {} of a micro-batch",
        training.micro_batch_size,
        training.seq_length,
        INT32_MAX));
    return;
  }
  const ParallelDims& dims = config.distributed.dims;
  if (__builtin_mul_overflow(
          tokens, training.gradient_accumulation_steps, &tokens) ||
      __builtin_mul_overflow(tokens, int64_t{dims.batch_parts()}, &tokens)) {
    problems.push_back(fmt::format(
        "[config] /training/micro_batch_size = {} * /training/seq_length = {} "
        "* /training/gradient_accumulation_steps = {} * {} are more tokens "
        "than a step can count ({})",
        training.micro_batch_size,
        training.seq_length,
        training.gradient_accumulation_steps,
        keys_of(dims, kBatchAxes),
        INT64_MAX));
    return;
  }
  if (training.max_tokens && *training.max_tokens < tokens)
    problems.push_back(fmt::format(
        "[config] /training/max_tokens = {} is less than the {} tokens of one "
        "step ({} x micro_batch_size {} x gradient_accumulation_steps {} x "
        "seq_length {}): raise it, or make the step smaller",
        *training.max_tokens,
        tokens,
        keys_of(dims, kBatchAxes),
        training.micro_batch_size,
        training.gradient_accumulation_steps,
        training.seq_length));
}

// What a layout asks of a run, whatever the model; without advice.
void check_run(const TrainConfig& config, Problems& problems) {
  const DistributedConfig& distributed = config.distributed;
  const TrainingConfig& training = config.training;
  if (training.gradient_accumulation_steps > INT32_MAX) {
    problems.push_back(fmt::format(
        "[config] /training/gradient_accumulation_steps = {}: too many",
        training.gradient_accumulation_steps));
    return;
  }
  check_token_counts(config, problems);
  // Stages of one rank would each have a copy of a tied embedding, which would
  // diverge.
  if (distributed.dims.pp == 1 && distributed.pp_virtual_stages > 1)
    problems.push_back(fmt::format(
        "[config] /distributed/pp_virtual_stages = {} needs a pp_size of at "
        "least 2, but it is 1: one rank holds the whole model as one stage; "
        "set pp_virtual_stages to 1",
        distributed.pp_virtual_stages));
  else
    validate_pipeline_size(
        distributed.pp_engine, pipeline_size(config), problems);
  validate_sequence_partition(training.seq_length, distributed.dims, problems);
  // The tokens of a rank's micro-batch; the product of two large numbers is not
  // formed.
  const int64_t tokens = tokens_per_rank(training.seq_length, distributed.dims);
  const int64_t tp = distributed.dims.tp;
  if (distributed.sequence_parallel &&
      training.micro_batch_size % tp * (tokens % tp) % tp != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/sequence_parallel: {} x {} tokens of a rank's "
        "micro-batch (micro_batch_size x its part of seq_length) do not divide "
        "by tp {}",
        training.micro_batch_size,
        tokens,
        tp));
  const int64_t stages =
      int64_t{distributed.dims.pp} * distributed.pp_virtual_stages;
  const auto recompute_count = static_cast<int64_t>(training.recompute.size());
  if (recompute_count != 1 && recompute_count != stages)
    problems.push_back(fmt::format(
        "[config] /training/recompute has {} entries, but there are {} stages "
        "(pp * virtual stages); give one for all or one per stage",
        recompute_count,
        stages));
}

void check_experts(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  const DistributedConfig& distributed = config.distributed;
  const ParallelDims& dims = distributed.dims;
  const int64_t experts = decoder.experts ? decoder.experts->num_experts : 0;
  if (dims.ep > 1 && experts == 0)
    problems.push_back(fmt::format(
        "[config] /distributed/ep_size = {}: the model has no experts to "
        "divide; set ep_size to 1",
        dims.ep));
  else if (experts % dims.ep != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/ep_size = {} does not divide the model's {} "
        "experts",
        dims.ep,
        experts));
  const int groups = distributed.replica_groups();
  if (distributed.rounds.local_steps > 0 && dims.dp % groups == 0 &&
      dims.replicas() / groups % dims.ep != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/ep_size = {} does not divide the {} ranks of {} "
        "of a group of /distributed/local_steps, which has all experts; set "
        "ep_size to a divisor of it, or local_groups to fewer",
        dims.ep,
        dims.replicas() / groups,
        names_of(kReplicaAxes)));
}

// What the model asks of a layout, without advice about whole layouts.
void check_model(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  const DistributedConfig& distributed = config.distributed;
  validate_tensor_parallel(
      tensor_parallel_sizes(decoder), distributed.dims, problems);
  check_experts(config, decoder, problems);
  // A rank sees its own part of the positions alone.
  if (goes_beyond_dynamic_rope(config, decoder) &&
      distributed.dims.sequence_parts() > 1)
    problems.push_back(fmt::format(
        "[config] {}: rope_scaling \"dynamic\" depends on how far a sequence "
        "goes beyond max_position_embeddings {}, which a part of it does not "
        "tell; set it to 1, or seq_length to at most {}",
        keys_of(distributed.dims, kSequenceAxes),
        decoder.max_position_embeddings,
        decoder.max_position_embeddings));
  if (distributed.dims.pp == 1 && distributed.pp_virtual_stages == 1 &&
      !distributed.pp_layers)
    return;
  stage_layers(config, decoder, problems);
}

// How far two layouts are apart: doublings and halvings of their sizes.
double distance(const ParallelDims& a, const ParallelDims& b) {
  const auto doublings = [](int one, int other) {
    return std::abs(std::log2(static_cast<double>(one) / other));
  };
  double sum = doublings(a.ep, b.ep);
  for (Axis axis : kAxes)
    sum += doublings(a[axis], b[axis]);
  return sum;
}

// Layouts of so many ranks with an ep up to that of `wanted`, nearest first.
std::vector<ParallelDims> layouts_near(
    const ParallelDims& wanted,
    int world_size) {
  std::vector<ParallelDims> layouts;
  for (ParallelDims dims : all_dims(world_size)) {
    const int most = std::min(wanted.ep, dims.replicas());
    for (dims.ep = 1; dims.ep <= most; ++dims.ep) {
      if (dims.replicas() % dims.ep == 0)
        layouts.push_back(dims);
    }
  }
  std::ranges::stable_sort(layouts, {}, [&](const ParallelDims& dims) {
    return distance(dims, wanted);
  });
  return layouts;
}

// Rules of gradients and ZeRO that the config breaks.
size_t count_refusals(const TrainConfig& config) {
  Problems problems;
  check_data_parallel(config, problems);
  return problems.size();
}

// The number of virtual stages with which such a layout fits, if there is one:
// the config's own, else the least of a schedule.
std::optional<int> fitting_virtual_stages(
    const TrainConfig& config,
    const DecoderConfig* decoder,
    const ParallelDims& dims) {
  const DistributedConfig& own = config.distributed;
  for (const int virtual_stages : {own.pp_virtual_stages, 1, 2}) {
    TrainConfig candidate = config;
    candidate.distributed.dims = dims;
    candidate.distributed.pp_virtual_stages = virtual_stages;
    // Another number of stages is cut by cost, with one `recompute` for all.
    if (dims.pp != own.dims.pp || virtual_stages != own.pp_virtual_stages) {
      candidate.distributed.pp_layers.reset();
      candidate.training.recompute.resize(1);
    }
    Problems problems;
    if (decoder != nullptr)
      check_model(candidate, *decoder, problems);
    if (problems.empty())
      check_run(candidate, problems);
    if (problems.empty() && count_refusals(candidate) <= count_refusals(config))
      return virtual_stages;
  }
  return std::nullopt;
}

// "dp 2 * pp 2 * cp 1 * tp 2 with pp_virtual_stages=1", nearest first.
std::vector<std::string> nearest_layouts(
    const TrainConfig& config,
    const DecoderConfig* decoder,
    int world_size) {
  ParallelDims wanted = config.parallel_dims();
  wanted.dp = std::max(1, wanted.dp);
  std::vector<std::string> nearest;
  for (const ParallelDims& dims : layouts_near(wanted, world_size)) {
    if (nearest.size() == kShownLayouts)
      break;
    const auto virtual_stages = fitting_virtual_stages(config, decoder, dims);
    if (!virtual_stages)
      continue;
    std::vector<std::string> settings;
    if (*virtual_stages != config.distributed.pp_virtual_stages)
      settings.push_back(fmt::format("pp_virtual_stages={}", *virtual_stages));
    // As fitting_virtual_stages() changes them.
    if (dims.pp != wanted.pp ||
        *virtual_stages != config.distributed.pp_virtual_stages) {
      if (config.distributed.pp_layers)
        settings.emplace_back("pp_layers=null");
      if (config.training.recompute.size() > 1)
        settings.push_back(fmt::format(
            "recompute={}", to_string(config.training.recompute.front())));
    }
    if (dims.ep == 1 && wanted.ep > 1)  // which the product leaves out
      settings.emplace_back("ep_size=1");
    nearest.push_back(fmt::format(
        "{}{}{}",
        dims.product(),
        settings.empty() ? "" : " with ",
        fmt::join(settings, " and ")));
  }
  return nearest;
}

// "; nearest layouts of 8 ranks that fit: ...", or nothing.
std::string advise(
    const TrainConfig& config,
    const DecoderConfig* decoder,
    int world_size) {
  const auto nearest = nearest_layouts(config, decoder, world_size);
  if (nearest.empty())
    return "";
  return fmt::format(
      "; nearest layouts of {} ranks that fit: {}",
      world_size,
      fmt::join(nearest, "; "));
}

// "start 4 ranks (--nproc 4) or ", where so many would do.
std::string advise_ranks(const ParallelDims& dims) {
  const double ranks = dims.rank_count();
  Problems problems;
  if (ranks <= INT32_MAX)
    dims.validate(static_cast<int>(ranks), problems);
  if (ranks > INT32_MAX || !problems.empty())
    return "";
  return fmt::format("start {0:.0f} ranks (--nproc {0:.0f}) or ", ranks);
}

// Adds what was found, with the layouts to choose instead, if any, at the end.
void add_with_advice(
    const TrainConfig& config,
    const DecoderConfig* decoder,
    Problems found,
    Problems& problems) {
  if (found.empty())
    return;
  found.back() += advise(config, decoder, config.parallel_dims().world_size());
  problems.insert(problems.end(), found.begin(), found.end());
}

// What a layout asks of a config; the model's part only where it is known.
void check_layout(
    const TrainConfig& config,
    const DecoderConfig* decoder,
    Problems& problems) {
  Problems found;
  check_run(config, found);
  add_with_advice(config, decoder, std::move(found), problems);
  check_data_parallel(config, problems);
  check_data(config, problems);
  if (decoder != nullptr)
    validate_model_layout(config, *decoder, problems);
}

}  // namespace

void lay_out(int world_size, TrainConfig& config, Problems& problems) {
  DistributedConfig& distributed = config.distributed;
  const DecoderConfig* decoder =
      config.model.decoder ? &*config.model.decoder : nullptr;
  ParallelDims& dims = distributed.dims;
  if (dims.dp == 0) {
    const ParallelDims filled = dims.with_rest_for(world_size);
    dims.dp = filled.rank_count() == world_size ? filled.dp : 1;
  }
  Problems product_problems;
  dims.validate(world_size, product_problems);
  for (const std::string& problem : product_problems)
    problems.push_back(fmt::format(
        "{}; {}change /distributed/*_size{}",
        problem,
        advise_ranks(dims),
        advise(config, decoder, world_size)));
  if (!product_problems.empty())
    return;
  check_layout(config, decoder, problems);
}

void validate_model_layout(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    Problems& problems) {
  check_adapter(config, decoder, problems);
  check_mup(config, decoder, problems);
  check_model_keys(config, decoder, problems);
  Problems found;
  check_model(config, decoder, found);
  TrainConfig cut_by_cost = config;
  cut_by_cost.distributed.pp_layers.reset();
  Problems without_list;
  check_model(cut_by_cost, decoder, without_list);
  // A list of layers that is wrong by itself says so; the layout is fine.
  if (without_list.empty())
    problems.insert(problems.end(), found.begin(), found.end());
  else
    add_with_advice(config, &decoder, std::move(found), problems);
}

}  // namespace brigade
