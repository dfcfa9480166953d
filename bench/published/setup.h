// What each published run says of its model, machine, program and layout, and
// its step time.
//
// What a run's software does (attention kernel, overlap, sharding) is read from
// its notes, and where they are silent from the program that made it. No figure
// of a run enters its prediction.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/published/gpt_shape.h"
#include "bench/published/program.h"
#include "bench/published/runs.h"
#include "brigade/planner/step_estimate.h"

namespace brigade::bench {

// ---- the model

inline bool is_gpt_like(const PublishedRun& run) {
  const std::string& model = run.text("model");
  return model.starts_with("GPT") || model.starts_with("BLOOM") ||
         model.starts_with("MPT");
}

// The layers that a size in a model's name stands for, where they are not
// given: 12 C^2 parameters each, a multiple of the stages.
inline int layers_of(const PublishedRun& run) {
  if (run.integer("layers") > 0)
    return static_cast<int>(run.integer("layers"));
  const std::string& model = run.text("model");
  const double billions = std::stod(model.substr(model.find('-') + 1));
  const auto hidden = static_cast<double>(run.integer("hidden"));
  const auto pp = static_cast<double>(std::max<int64_t>(1, run.integer("pp")));
  return static_cast<int>(
      std::round(billions * 1e9 / (12 * hidden * hidden) / pp) * pp);
}

inline planner::ModelShape shape_of_run(const PublishedRun& run) {
  planner::ModelShape shape;
  shape.name = run.text("model");
  const bool is_gpt = is_gpt_like(run);
  const int64_t hidden = run.integer("hidden");
  const int64_t heads =
      run.integer("heads") > 0 ? run.integer("heads") : hidden / 128;
  int64_t intermediate = run.integer("ffn");
  if (intermediate == 0)  // 8/3 C in multiples of 256, as Llama's own
    intermediate = is_gpt ? 4 * hidden : (hidden * 8 / 3 + 255) / 256 * 256;
  if (is_gpt) {
    shape = gpt_shape(
        {.layers = layers_of(run),
         .hidden = hidden,
         .heads = heads,
         .intermediate = intermediate,
         .vocab = run.integer("vocab"),
         .positions = run.integer("seq")},
        shape.name);
    shape.tied_head = !run.notes_have("untied");
    if (shape.name.starts_with("MPT") || run.source_has("llm.c") ||
        run.source_has("Megatron-Core"))
      shape.mask_bytes = 0;
    return shape;
  }
  shape.layers = layers_of(run);
  shape.hidden = hidden;
  shape.heads = heads;
  shape.head_dim = hidden / heads;
  const bool is_llama3 = shape.name.find("LLAMA3") != std::string::npos ||
                         shape.name.find("Llama-3.1") != std::string::npos;
  shape.kv_heads = is_llama3 || run.notes_have("kv_heads=8") ? 8 : heads;
  shape.intermediate = intermediate;
  shape.vocab = run.integer("vocab");
  shape.tied_head =
      run.notes_have("tied embeddings if ffn<10000") && intermediate < 10000;
  return shape;
}

// ---- the machine

// One that the planner does not know by name: a machine file beside this one.
inline machine::Machine machine_of_file(const std::string& name) {
  const std::string path =
      std::string(BRIGADE_SOURCE_DIR "/bench/published/") + name + ".json";
  std::ifstream file(path);
  if (!file)
    throw DataError(fmt::format("[{}] cannot be read", path));
  std::vector<std::string> problems;
  const machine::Machine machine = machine::parse_machine(
      nlohmann::json::parse(file), path + ": ", problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return machine;
}

inline machine::Machine machine_of_run(const PublishedRun& run) {
  const std::string& type = run.text("gpu_type");
  const auto has = [&](const char* words) {
    return type.find(words) != std::string::npos;
  };
  const auto named = [&]() -> std::string {
    if (has("GB300"))
      return "gb300";
    if (has("GB200"))
      return "gb200";
    if (has("B200"))
      return "b200";
    if (has("H200"))
      return "h200";
    if (has("H100-96GB"))
      return "h100-96-500w";
    if (has("H100") || has("h100"))
      return "h100";
    if (has("V100"))
      return "v100";
    if (has("40gb") || has("40GB") || has("DGX-A100"))
      return "a100-40";
    if (has("A100") || has("a100"))
      return "a100-80";
    return "";
  }();
  if (named.empty())
    return {};
  machine::Machine machine =
      named == "v100" ? machine_of_file(named) : machine::find_machine(named);
  // Four cards of 100 Gbit/s per node, by the type's own words.
  if (has("4xOmniPath") || has("4x100Gb")) {
    machine.inter.bytes_per_s = 400e9 / 8;
    machine.cards_per_node = 4;
  }
  return machine;
}

// ---- the program

inline PublishedProgram program_of_run(
    const PublishedRun& run,
    const ProgramConstants& constants) {
  PublishedProgram program;
  program.rank_order = RankOrder::kPpDpCpTp;
  program.bucket_bytes = 160 * MiB;  // Megatron's 40 M fp32 elements
  const bool megatron_2021 =
      run.source_has("Narayanan") || run.source_has("README 2020") ||
      run.source_has("Korthikanti") || run.source_has("BigScience");
  const bool megatron_core =
      run.source_has("Megatron-Core") || run.source_has("Megatron-Bridge");
  if (megatron_2021) {
    program.kernel = Attention::kMaterialized;
    program.waits_for_transfers = true;
    program.transfer_pieces = TransferPieces::kOfRanks;
    // BigScience's log: from 20 nodes of 8 on training hung unless
    // CUDA_LAUNCH_BLOCKING=1 was set.
    if (run.source_has("BigScience") && run.integer("gpus") >= 160)
      program.host_s = constants.blocked_host_s;
    // DDP-impl=local and DeepSpeed's pipeline reduce after the last backward.
    if (!run.notes_have("DDP-impl=torch"))
      program.reduces_in_backward = false;
  } else if (megatron_core) {
    program.kernel = Attention::kFlash3;
    program.gathers_in_forward = true;
    program.tensor_parallel = TensorParallel::kPipelined;
  } else if (run.source_has("mosaicml")) {
    program.kernel = Attention::kFlash1;  // attn_impl: triton
    program.elementwise_passes = constants.eager_passes;
    program.gathers_in_forward = true;
  } else if (run.source_has("llm.c")) {
    program.kernel = Attention::kFlash3;  // cuDNN
    program.reduces_in_backward = false;
  } else if (run.source_has("torchtitan")) {
    program.gathers_in_forward = true;
    if (!run.notes_have("compile"))
      program.elementwise_passes = constants.eager_passes;
    if (run.notes_have("async TP") || run.notes_have("AsyncTP"))
      program.tensor_parallel = TensorParallel::kPipelined;
  } else if (
      run.source_has("nanotron") || run.source_has("picotron") ||
      run.notes_have("DeepSpeed(HF)")) {
    // nanotron has Triton's RMSNorm and FlashAttention's rotary embedding.
    if (!run.source_has("nanotron"))
      program.elementwise_passes = constants.eager_passes;
    program.bucket_bytes = 25 * MiB;
  } else if (run.source_has("InternEvo")) {
    program.weight_gather = WeightGather::kOwnerBroadcasts;
    program.elementwise_passes = constants.eager_passes;
    // zero1=8 shards over groups of 8, zero1=-1 over all.
    const std::string& notes = run.text("notes");
    const auto at = notes.find("zero1=");
    if (at != std::string::npos)
      program.zero_ranks = std::max(0, std::atoi(&notes[at + 6]));
  }
  // Only NVIDIA's later programs add in the product (2022 on).
  if (!megatron_core && !run.source_has("llm.c"))
    program.adds = Accumulation::kSeparate;
  // torchtitan's "selective AC" keeps every other product: half a forward is
  // done again.
  if (run.source_has("torchtitan") && run.notes_have("selective AC"))
    program.recomputed_layers = 0.5;
  return program;
}

inline planner::Precision precision_of_run(const PublishedRun& run) {
  using machine::ProductDtype;
  planner::Precision precision = {.optimizer_bytes = 12};
  const auto any = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) {
      return run.notes_have(word);
    });
  };
  if (any({"NVFP4"}))
    precision.products = ProductDtype::kFp4;
  else if (any({"MXFP8"}))
    precision.products = ProductDtype::kMxfp8;
  else if (any({"FP8", "Float8", "float8"}))
    precision.products = ProductDtype::kFp8;
  if (any({"PURE"}) || run.source_has("Narayanan") ||
      run.source_has("README 2020") || run.source_has("InternEvo") ||
      run.source_has("Megatron-Bridge"))
    precision.wire_bytes = 2;
  if (run.source_has("BigScience")) {
    const bool fp32_gradients = any({"fp32 grad accumulation"});
    precision.wire_bytes = fp32_gradients ? 4 : 2;
    precision.gradient_bytes = fp32_gradients ? 4 : 2;
  }
  if (run.source_has("torchtitan")) {
    precision.weight_bytes = 4;  // sharded in fp32
    precision.optimizer_bytes = 8;
  }
  return precision;
}

// ---- the layout

inline int zero_stage_of(const PublishedRun& run) {
  const auto fsdp = run.text("notes").find("FSDP=");
  const bool is_bridge_fsdp =
      fsdp != std::string::npos &&
      std::isdigit(static_cast<unsigned char>(run.text("notes")[fsdp + 5])) !=
          0 &&
      run.text("notes")[fsdp + 5] != '0';
  // With a pipeline torchtitan gathers weights once per step.
  if (run.source_has("torchtitan"))
    return run.integer("pp") > 1 ? 1 : 3;
  if (run.notes_have("FULL_SHARD") || is_bridge_fsdp)
    return 3;
  if (run.notes_have("SHARD_GRAD_OP"))
    return 2;
  if (run.notes_have("ZeRO-0"))
    return 0;
  if (run.notes_have("overlap-param-gather") || run.notes_have("ZeRO-1") ||
      run.notes_have("zero1=") || run.source_has("Megatron-Bridge"))
    return 1;
  return 0;
}

inline planner::Recompute recompute_of(const PublishedRun& run) {
  if (run.source_has("BigScience"))  // --checkpoint-activations throughout
    return planner::Recompute::kFull;
  for (const char* words :
       {"full activation",
        "full AC",
        "act_ckpt=True",
        "act ckpt=on",
        "full recompute",
        "selective AC",
        "recompute setting not stated"})  // its TFLOPs count a second forward
    if (run.notes_have(words))
      return planner::Recompute::kFull;
  return run.notes_have("selective recompute") ? planner::Recompute::kSelective
                                               : planner::Recompute::kNone;
}

inline int virtual_stages_of(const PublishedRun& run, int layers) {
  const std::string& notes = run.text("notes");
  const auto number_behind = [&](const std::string& words) -> int {
    const auto at = notes.find(words);
    return at == std::string::npos ? 0 : std::atoi(&notes[at + words.size()]);
  };
  const auto pp = static_cast<int>(run.integer("pp"));
  if (pp <= 1)
    return 1;
  if (number_behind("layers_per_vstage=") > 0)
    return layers / pp / number_behind("layers_per_vstage=");
  if (number_behind("VP=") > 0)
    return number_behind("VP=");
  return run.notes_have("Interleaved") ? 2 : 1;
}

// Equal parts; where only that comes out even, the embedding and the head count
// as a layer each. What is left over goes to the first stages, but with
// DeepSpeed every stage takes as many as the largest until none are left
// (BigScience's log: 78 layers on 12 stages are 11 times 7 and 1).
inline std::vector<int>
stage_layers_of(const PublishedRun& run, int layers, int stages) {
  if (stages == 1)
    return {};
  std::vector<int> counts(static_cast<size_t>(stages));
  const bool ends_count = run.notes_have("embedding-aware") ||
                          (layers % stages != 0 && (layers + 2) % stages == 0);
  const int total = ends_count ? layers + 2 : layers;
  const int largest = (total + stages - 1) / stages;
  const bool fills = run.source_has("BigScience");
  for (int s = 0; s < stages; ++s)
    counts[static_cast<size_t>(s)] =
        fills ? std::clamp(total - s * largest, 0, largest)
              : total / stages + (s < total % stages ? 1 : 0);
  if (ends_count) {
    --counts.front();
    --counts.back();
  }
  return counts;
}

struct RunSetup {
  planner::Training training;
  std::vector<planner::Layout> layouts;  // one, or what was not published
};

// Empty, with the reason, when too little was published.
inline std::optional<RunSetup> set_up(
    const PublishedRun& run,
    const ProgramConstants& constants,
    std::string& why_not) {
  for (const char* key : {"hidden", "vocab", "seq"}) {
    if (run.integer(key) == 0) {
      why_not = fmt::format("no {}", key);
      return std::nullopt;
    }
  }
  RunSetup setup;
  setup.training.machine = machine_of_run(run);
  if (setup.training.machine.name.empty()) {
    why_not = "unknown device";
    return std::nullopt;
  }
  planner::Layout layout;
  layout.dims = {
      .dp = static_cast<int>(run.integer("dp")),
      .tp = static_cast<int>(run.integer("tp")),
      .pp = static_cast<int>(run.integer("pp")),
      .cp = std::max(1, static_cast<int>(run.integer("cp")))};
  if (layout.dims.dp == 0 || layout.dims.tp == 0 || layout.dims.pp == 0) {
    why_not = "no layout";
    return std::nullopt;
  }
  const auto gpus = static_cast<int>(run.integer("gpus"));
  if (layout.dims.world_size() != gpus)
    layout.dims.dp = gpus / (layout.dims.tp * layout.dims.pp * layout.dims.cp);
  setup.training.shape = shape_of_run(run);
  setup.training.precision = precision_of_run(run);
  setup.training.program =
      std::make_shared<PublishedProgram>(program_of_run(run, constants));
  layout.zero_stage = zero_stage_of(run);
  layout.recompute = recompute_of(run);
  layout.micro_batch = run.integer("micro_batch");
  const bool has_sequence_parallel =
      layout.dims.tp > 1 &&
      (run.source_has("nanotron") || run.source_has("torchtitan") ||
       run.source_has("Megatron-Core") || run.source_has("Megatron-Bridge"));
  if (has_sequence_parallel)
    layout.tokens = TokenLayout::kSharded;
  // torchtitan cuts a local batch in as many micro-batches as there are stages.
  layout.virtual_stages = virtual_stages_of(run, setup.training.shape.layers);
  if (run.source_has("torchtitan") && layout.dims.pp > 1)
    layout.micro_batch =
        std::max<int64_t>(1, layout.micro_batch / layout.stages());
  if (layout.virtual_stages > 1)
    layout.schedule = ScheduleKind::kInterleaved1F1B;
  setup.training.batch = {
      .sequence_tokens = run.integer("seq"),
      .sequences = run.integer("global_batch")};
  if (setup.training.batch.sequences == 0)
    setup.training.batch.sequences =
        run.integer("micro_batch") * layout.dims.dp;
  setup.training.stage_layers =
      stage_layers_of(run, setup.training.shape.layers, layout.stages());
  std::vector<int64_t> sizes = {layout.micro_batch};
  if (layout.micro_batch == 0)
    sizes = {1, 2, 4};
  for (int64_t size : sizes) {
    layout.micro_batch = size;
    // A batch that does not divide was rounded up by its program.
    const int64_t at_once = size * layout.dims.dp;
    if (setup.training.batch.sequences % at_once != 0 && sizes.size() > 1)
      continue;
    if (setup.training.batch.sequences % at_once != 0)
      setup.training.batch.sequences =
          (setup.training.batch.sequences + at_once - 1) / at_once * at_once;
    setup.layouts.push_back(layout);
  }
  return setup;
}

// ---- its figures

enum class FlopsCount { kModel, kWithRecompute };

// FLOPs of a step as Megatron counts them: 96 B T L C^2 (1 + T/6C + V/16LC)
// with the recomputed forward, 72 and V/12LC without.
inline double megatron_flops(const PublishedRun& run, FlopsCount count) {
  const bool with_recompute = count == FlopsCount::kWithRecompute;
  const auto layers = static_cast<double>(layers_of(run));
  const auto h = static_cast<double>(run.integer("hidden"));
  const auto t = static_cast<double>(run.integer("seq"));
  const auto v = static_cast<double>(run.integer("vocab"));
  const double tokens = static_cast<double>(run.integer("global_batch")) * t;
  return (with_recompute ? 96 : 72) * tokens * layers * h * h *
         (1 + t / (6 * h) + v / ((with_recompute ? 16 : 12) * layers * h));
}

// From the figure that says most directly what a step took.
inline std::optional<double> published_seconds(
    const PublishedRun& run,
    const planner::Training& training) {
  if (const auto seconds = run.figure("step_time_s"))
    return seconds;
  const auto gpus = static_cast<double>(run.integer("gpus"));
  const double tokens = static_cast<double>(training.batch.sequences) *
                        static_cast<double>(training.batch.sequence_tokens);
  if (const auto rate = run.figure("tokens_per_s_per_gpu"))
    return tokens / (*rate * gpus);
  if (const auto tera = run.figure("tflops_per_gpu"))
    return megatron_flops(
               run,
               run.notes_have("FLOPs count the recompute")
                   ? FlopsCount::kWithRecompute
                   : FlopsCount::kModel) /
           (*tera * 1e12 * gpus);
  if (const auto mfu = run.figure("mfu_pct"))
    return tokens *
           planner::model_flops_per_token(
               training.shape, training.batch.sequence_tokens) /
           (*mfu / 100 *
            training.machine.device.peak(machine::ProductDtype::kBf16) * gpus);
  return std::nullopt;
}

}  // namespace brigade::bench
