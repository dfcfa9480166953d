#include "brigade/config/layout_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/schedule/fragment_schedule.h"
#include "brigade/topology/layer_partition.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Problems = std::vector<std::string>;

constexpr size_t kShownLayouts = 3;

void parse_llama(
    const json& hugging_face_config,
    const std::string& pointer,
    TrainConfig& config,
    Problems& problems) {
  const size_t before = problems.size();
  const LlamaConfig llama = parse_llama_config(
      with_model_overrides(config.model, hugging_face_config),
      pointer,
      problems);
  if (problems.size() != before)
    return;
  config.model.llama = llama;
  config.model.source = hugging_face_config;
}

void parse_llama_file(
    const fs::path& path,
    TrainConfig& config,
    Problems& problems) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const DataError& error) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\": {}", config.model.name, error.what()));
    return;
  }
  // A damaged file is no problem of the run's config: a DataError.
  const JsonDocument file(text, {"config", path.string()});
  parse_llama(file.root().value(), path.string() + ": ", config, problems);
  config.model.folder =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// "HuggingFaceTB/SmolLM-135M" or "gpt2": what can be looked up elsewhere.
bool is_model_id(const std::string& name) {
  const bool is_path = name.starts_with('/') || name.starts_with('.') ||
                       name.starts_with('~') || name.ends_with('/') ||
                       name.ends_with(".json");
  return !is_path && std::count(name.begin(), name.end(), '/') <= 1;
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
  if (__builtin_mul_overflow(
          tokens, training.gradient_accumulation_steps, &tokens) ||
      __builtin_mul_overflow(
          tokens, int64_t{config.distributed.dp_size}, &tokens))
    problems.push_back(fmt::format(
        "[config] /training/micro_batch_size = {} * /training/seq_length = {} "
        "* /training/gradient_accumulation_steps = {} * /distributed/dp_size = "
        "{} are more tokens than a step can count ({})",
        training.micro_batch_size,
        training.seq_length,
        training.gradient_accumulation_steps,
        config.distributed.dp_size,
        INT64_MAX));
}

bool is_default_of_outer(const DistributedConfig& distributed) {
  const DistributedConfig none;
  return distributed.local_groups == none.local_groups &&
         distributed.outer_learning_rate == none.outer_learning_rate &&
         distributed.outer_momentum == none.outer_momentum &&
         distributed.outer_wire == none.outer_wire &&
         distributed.outer_fragments == none.outer_fragments &&
         distributed.outer_delay == none.outer_delay &&
         distributed.outer_alpha == none.outer_alpha;
}

void check_local_steps(
    const DistributedConfig& distributed,
    Problems& problems) {
  if (distributed.local_steps == 0) {
    if (!is_default_of_outer(distributed))
      problems.emplace_back(
          "[config] /distributed/local_groups and /distributed/outer_* have no "
          "meaning with /distributed/local_steps = 0; set local_steps, or "
          "leave them out");
    return;
  }
  if (distributed.zero_stage > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_steps = {} with /distributed/zero_stage = "
        "{}: the groups' optimizers differ, so that there is nothing to divide "
        "between them; set zero_stage to 0",
        distributed.local_steps,
        distributed.zero_stage));
  if (distributed.local_groups > 0 &&
      distributed.dp_size % distributed.local_groups != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_groups = {} does not divide dp_size = {}",
        distributed.local_groups,
        distributed.dp_size));
  validate_fragment_schedule(
      {.local_steps = distributed.local_steps,
       .fragments = distributed.outer_fragments,
       .delay = distributed.outer_delay},
      problems);
}

void check_grad_wire(const DistributedConfig& distributed, Problems& problems) {
  if (distributed.grad_wire != GradWire::kPowerSgd &&
      distributed.powersgd_rank != DistributedConfig{}.powersgd_rank)
    problems.push_back(fmt::format(
        "[config] /distributed/powersgd_rank = {} has no meaning with "
        "/distributed/grad_wire = \"{}\"; set grad_wire to \"powersgd\", or "
        "leave it out",
        distributed.powersgd_rank,
        to_string(distributed.grad_wire)));
  const bool keeps_errors = distributed.grad_wire == GradWire::kInt8 ||
                            distributed.grad_wire == GradWire::kPowerSgd;
  if (keeps_errors && distributed.zero_stage > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/grad_wire = \"{}\" with "
        "/distributed/zero_stage = {}: gradients are reduced whole, not in the "
        "ranges that ranks own; set zero_stage to 0, or grad_wire to \"bf16\"",
        to_string(distributed.grad_wire),
        distributed.zero_stage));
  if (distributed.grad_wire == GradWire::kFp32 ||
      distributed.grad_sync == GradSyncKind::kBucketed)
    return;
  problems.push_back(fmt::format(
      "[config] /distributed/grad_wire = \"{}\" with /distributed/grad_sync = "
      "\"{}\", which sends gradients as they are; set grad_sync to "
      "\"bucketed\"",
      to_string(distributed.grad_wire),
      to_string(distributed.grad_sync)));
}

void check_zero_stage(
    const DistributedConfig& distributed,
    Problems& problems) {
  if (distributed.zero_stage == 0)
    return;
  const auto refuse = [&](const char* key, const char* value, const char* why) {
    problems.push_back(fmt::format(
        "[config] /distributed/zero_stage = {} with /distributed/{} = \"{}\": "
        "{}",
        distributed.zero_stage,
        key,
        value,
        why));
  };
  if (distributed.grad_sync != GradSyncKind::kBucketed)
    refuse(
        "grad_sync",
        to_string(distributed.grad_sync),
        "only buckets are divided between ranks; set it to \"bucketed\"");
  if (distributed.bucket_order == BucketOrder::kObserved)
    refuse(
        "bucket_order",
        to_string(distributed.bucket_order),
        "what a rank owns must not change after the first step; set it to "
        "\"reverse\"");
  if (distributed.zero_stage > 1 &&
      distributed.pp_engine == ScheduleKind::kZeroBubble)
    refuse(
        "pp_engine",
        to_string(distributed.pp_engine),
        "its weight gradients come after a micro-batch's backward, when its "
        "buckets were sent; use zero_stage 1 or another schedule");
  if (distributed.zero_stage > 2 && distributed.pp_size > 1)
    problems.push_back(fmt::format(
        "[config] /distributed/zero_stage = {} with /distributed/pp_size = {}: "
        "every micro-batch of a pipeline would gather a stage's weights anew, "
        "twice; set zero_stage to 2, or pp_size to 1",
        distributed.zero_stage,
        distributed.pp_size));
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
  if (distributed.pp_size == 1 && distributed.pp_virtual_stages > 1)
    problems.push_back(fmt::format(
        "[config] /distributed/pp_virtual_stages = {} needs a pp_size of at "
        "least 2, but it is 1: one rank holds the whole model as one stage; "
        "set pp_virtual_stages to 1",
        distributed.pp_virtual_stages));
  else
    validate_pipeline_size(
        distributed.pp_engine,
        {.ranks = distributed.pp_size,
         .virtual_stages = distributed.pp_virtual_stages,
         .micro_batches =
             static_cast<int>(training.gradient_accumulation_steps)},
        problems);
  validate_sequence_partition(
      training.seq_length, distributed.cp_size, problems);
  // Of a rank's micro-batch; the product of two large numbers is not formed.
  const int64_t tokens = training.seq_length / distributed.cp_size;
  const int64_t tp = distributed.tp_size;
  if (distributed.sequence_parallel &&
      training.micro_batch_size % tp * (tokens % tp) % tp != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/sequence_parallel: {} x {} tokens of a rank's "
        "micro-batch (micro_batch_size x seq_length / cp) do not divide by tp "
        "{}",
        training.micro_batch_size,
        tokens,
        tp));
  const int64_t stages =
      int64_t{distributed.pp_size} * distributed.pp_virtual_stages;
  const auto recompute_count = static_cast<int64_t>(training.recompute.size());
  if (recompute_count != 1 && recompute_count != stages)
    problems.push_back(fmt::format(
        "[config] /training/recompute has {} entries, but there are {} stages "
        "(pp * virtual stages); give one for all or one per stage",
        recompute_count,
        stages));
}

// The model's own demands, without advice about whole layouts.
void check_model(
    const TrainConfig& config,
    const LlamaConfig& llama,
    Problems& problems) {
  const DistributedConfig& distributed = config.distributed;
  validate_tensor_parallel(
      tensor_parallel_sizes(llama), distributed.tp_size, problems);
  if (distributed.outer_fragments > llama.num_hidden_layers)
    problems.push_back(fmt::format(
        "[config] /distributed/outer_fragments = {} is more than the model's "
        "{} layers",
        distributed.outer_fragments,
        llama.num_hidden_layers));
  if (distributed.pp_size == 1 && distributed.pp_virtual_stages == 1 &&
      !distributed.pp_layers)
    return;
  const LayerCosts costs = estimate_layer_costs(
      {.num_layers = static_cast<int>(llama.num_hidden_layers),
       .hidden_size = llama.hidden_size,
       .intermediate_size = llama.intermediate_size,
       .attention_width = llama.num_attention_heads * llama.head_dim,
       .key_value_width = llama.num_key_value_heads * llama.head_dim,
       .vocab_size = llama.vocab_size,
       .sequence_tokens = config.training.seq_length});
  partition_layers(
      costs,
      {.pp = distributed.pp_size,
       .virtual_stages = distributed.pp_virtual_stages,
       .pp_layers = distributed.pp_layers},
      problems);
}

// How far two layouts are apart: doublings and halvings of their sizes.
double distance(const ParallelDims& a, const ParallelDims& b) {
  double sum = 0;
  for (Axis axis : kAxes)
    sum += std::abs(std::log2(static_cast<double>(a[axis]) / b[axis]));
  return sum;
}

// "dp 2 * pp 2 * cp 1 * tp 2 (distributed.tp_size=2)", nearest first.
std::vector<std::string> nearest_layouts(
    const TrainConfig& config,
    const LlamaConfig* llama,
    int world_size) {
  const auto divisors = [](int number) {
    std::vector<int> all;
    for (int divisor = 1; divisor <= number; ++divisor) {
      if (number % divisor == 0)
        all.push_back(divisor);
    }
    return all;
  };
  std::vector<ParallelDims> layouts;
  for (int tp : divisors(world_size)) {
    for (int cp : divisors(world_size / tp)) {
      for (int pp : divisors(world_size / tp / cp))
        layouts.push_back(
            {.dp = world_size / tp / cp / pp, .tp = tp, .pp = pp, .cp = cp});
    }
  }
  ParallelDims wanted = config.parallel_dims();
  wanted.dp = std::max(1, wanted.dp);
  std::stable_sort(
      layouts.begin(), layouts.end(), [&](const auto& a, const auto& b) {
        return distance(a, wanted) < distance(b, wanted);
      });
  std::vector<std::string> nearest;
  for (const ParallelDims& dims : layouts) {
    if (nearest.size() == kShownLayouts)
      break;
    TrainConfig candidate = config;
    candidate.distributed.dp_size = dims.dp;
    candidate.distributed.tp_size = dims.tp;
    candidate.distributed.pp_size = dims.pp;
    candidate.distributed.cp_size = dims.cp;
    // Stages of another number are cut by cost, and treated alike.
    if (dims.pp != config.distributed.pp_size)
      candidate.distributed.pp_layers.reset();
    const bool one_stage =
        dims.pp == 1 && config.distributed.pp_virtual_stages > 1;
    if (one_stage)
      candidate.distributed.pp_virtual_stages = 1;
    if (dims.pp != config.distributed.pp_size || one_stage)
      candidate.training.recompute.resize(1);
    Problems problems;
    if (llama != nullptr)
      check_model(candidate, *llama, problems);
    if (problems.empty())
      check_run(candidate, problems);
    if (problems.empty())
      nearest.push_back(
          dims.product() + (one_stage ? " with pp_virtual_stages=1" : ""));
  }
  return nearest;
}

std::string
advise(const TrainConfig& config, const LlamaConfig* llama, int world_size) {
  const auto nearest = nearest_layouts(config, llama, world_size);
  if (nearest.empty())
    return fmt::format(
        "no layout of {} ranks fits with these settings", world_size);
  return fmt::format(
      "nearest layouts of {} ranks that fit: {}",
      world_size,
      fmt::join(nearest, "; "));
}

// Adds what was found, with the layouts to choose instead at the end.
void add_with_advice(
    const TrainConfig& config,
    const LlamaConfig* llama,
    Problems found,
    Problems& problems) {
  if (found.empty())
    return;
  found.back() +=
      "; " + advise(config, llama, config.parallel_dims().world_size());
  problems.insert(problems.end(), found.begin(), found.end());
}

// What a layout asks of a config; the model's part only where it is known.
void check_layout(
    const TrainConfig& config,
    const LlamaConfig* llama,
    Problems& problems) {
  Problems found;
  check_run(config, found);
  add_with_advice(config, llama, std::move(found), problems);
  check_grad_wire(config.distributed, problems);
  check_zero_stage(config.distributed, problems);
  check_local_steps(config.distributed, problems);
  if (config.distributed.zero_stage > 2 &&
      config.training.check_replicas_every > 0)
    problems.push_back(fmt::format(
        "[config] /training/check_replicas_every = {} with "
        "/distributed/zero_stage = {}, where no two ranks of dp x cp hold the "
        "same; set check_replicas_every to 0, or zero_stage to 2",
        config.training.check_replicas_every,
        config.distributed.zero_stage));
  if (llama != nullptr)
    validate_model_layout(config, *llama, problems);
}

}  // namespace

json with_model_overrides(const ModelConfig& model, json hugging_face_config) {
  // What is not an object is reported by the parser.
  if (!hugging_face_config.is_object())
    return hugging_face_config;
  const auto put = [&](const char* key, const std::optional<int64_t>& value) {
    if (value)
      hugging_face_config[key] = *value;
  };
  put("num_hidden_layers", model.num_hidden_layers);
  put("num_attention_heads", model.num_attention_heads);
  put("num_key_value_heads", model.num_key_value_heads);
  return hugging_face_config;
}

void find_llama_config(
    const FindModel& find_model,
    TrainConfig& config,
    Problems& problems) {
  const ModelConfig& model = config.model;
  if (!model.config.is_null() && !model.name.empty()) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\" and /model/config are both given; leave "
        "one out (model.config=null on the command line does)",
        model.name));
    return;
  }
  if (!model.config.is_null()) {
    if (model.init == WeightInit::kPretrained)
      problems.emplace_back(
          "[config] /model/init = \"pretrained\" needs /model/name, a folder "
          "or "
          "an id with weights; /model/config has none");
    parse_llama(model.config, "/model/config", config, problems);
    return;
  }
  if (model.name.empty()) {
    problems.emplace_back(
        "[config] neither /model/config nor /model/name is given; set one to "
        "a Hugging Face config, inline or as a path");
    return;
  }
  const fs::path path = model.name;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    parse_llama_file(path / "config.json", config, problems);
  } else if (fs::exists(path, error)) {
    parse_llama_file(path, config, problems);
  } else if (!is_model_id(model.name)) {
    problems.push_back(fmt::format(
        "[config] /model/name = \"{}\": there is no such file or folder",
        model.name));
  } else if (find_model) {
    if (const auto folder = find_model(model.name))
      parse_llama_file(*folder / "config.json", config, problems);
  }
}

void lay_out(int world_size, TrainConfig& config, Problems& problems) {
  DistributedConfig& distributed = config.distributed;
  const LlamaConfig* llama =
      config.model.llama ? &*config.model.llama : nullptr;
  const bool dp_is_given = distributed.dp_size > 0;
  ParallelDims dims = config.parallel_dims();
  dims.dp = std::max(1, dims.dp);
  Problems product_problems;
  if (!dp_is_given) {
    dims.validate(world_size, product_problems);
    // The product of the other three, which fits an int if it fits the world.
    if (!product_problems.empty()) {
      const double others = double{1} * dims.tp * dims.pp * dims.cp;
      if (others <= world_size && world_size % static_cast<int>(others) == 0) {
        dims.dp = world_size / static_cast<int>(others);
        product_problems.clear();
      }
    }
    distributed.dp_size = dims.dp;
  } else {
    dims.validate(world_size, product_problems);
  }
  if (!product_problems.empty()) {
    const double product = double{1} * dims.dp * dims.tp * dims.pp * dims.cp;
    for (const std::string& problem : product_problems)
      problems.push_back(fmt::format(
          "{}; start {:.0f} ranks (--nproc {:.0f}) or change "
          "/distributed/*_size; {}",
          problem,
          product,
          product,
          advise(config, llama, world_size)));
    return;
  }
  check_layout(config, llama, problems);
}

void resolve_model(TrainConfig& config, const fs::path& folder) {
  Problems problems;
  parse_llama_file(folder / "config.json", config, problems);
  if (config.model.llama)
    validate_model_layout(config, *config.model.llama, problems);
  if (!problems.empty())
    throw ConfigError(problems);
}

void validate_model_layout(
    const TrainConfig& config,
    const LlamaConfig& llama,
    Problems& problems) {
  Problems found;
  check_model(config, llama, found);
  TrainConfig cut_by_cost = config;
  cut_by_cost.distributed.pp_layers.reset();
  Problems without_list;
  check_model(cut_by_cost, llama, without_list);
  // A list of layers that is wrong by itself says so; the layout is fine.
  if (without_list.empty())
    problems.insert(problems.end(), found.begin(), found.end());
  else
    add_with_advice(config, &llama, std::move(found), problems);
}

}  // namespace brigade
