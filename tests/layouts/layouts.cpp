#include "layouts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace brigade {

namespace {

constexpr int kMaxRanks = 8;
// The first and the last may hold no layer, the others one of the 4.
constexpr int kMostStages = 6;

bool fits(const ParallelDims& dims) {
  const bool heads = dims.tp == 1 || dims.tp == 2 || dims.tp == 4;
  const bool layers = dims.pp <= kMostStages;
  return heads && layers && dims.world_size() <= kMaxRanks;
}

struct ScheduleChoice {
  std::string name;
  int virtual_stages = 1;
};

std::vector<ScheduleChoice> schedules_of(int pp) {
  if (pp == 1)
    return {{"1f1b"}};
  std::vector<ScheduleChoice> choices = {{"afab"}, {"1f1b"}, {"zero_bubble"}};
  for (int virtual_stages = 2; pp * virtual_stages <= kMostStages;
       ++virtual_stages)
    choices.push_back({"interleaved_1f1b", virtual_stages});
  return choices;
}

// All of one layout's options.
void add_options(const ParallelDims& dims, std::vector<LayoutCase>& cases) {
  LayoutCase layout{.dims = dims};
  for (const ScheduleChoice& schedule : schedules_of(dims.pp)) {
    layout.schedule = schedule.name;
    layout.virtual_stages = schedule.virtual_stages;
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && dims.tp == 1)
        continue;
      layout.sequence_parallel = sequence_parallel;
      for (const char* recompute : {"none", "selective", "full"}) {
        layout.recompute = recompute;
        for (const char* grad_sync : {"bucketed", "per_param"}) {
          layout.grad_sync = grad_sync;
          for (const bool tied : {true, false}) {
            layout.tied = tied;
            cases.push_back(layout);
          }
        }
      }
    }
  }
}

// "stages": by turns none and full, the first stage none.
std::string recompute_of(const LayoutCase& layout) {
  if (layout.recompute != "stages")
    return fmt::format("[\"{}\"]", layout.recompute);
  std::vector<std::string> stages;
  for (int i = 0; i < layout.dims.pp * layout.virtual_stages; ++i)
    stages.emplace_back(i % 2 == 0 ? "\"none\"" : "\"full\"");
  return fmt::format("[{}]", fmt::join(stages, ","));
}

// What one case of each dims shows: bf16, whose kernels are others, and
// documents apart.
void add_variants(const ParallelDims& dims, std::vector<LayoutCase>& cases) {
  cases.push_back({.dims = dims, .dtype = "bfloat16"});
  LayoutCase other{
      .dims = dims,
      .sequence_parallel = dims.tp > 1,
      .tied = false,
      .dtype = "bfloat16"};
  if (dims.pp > 1)
    other.schedule = "zero_bubble";
  if (other.sequence_parallel || dims.pp > 1)
    cases.push_back(other);
  cases.push_back({.dims = dims, .documents = true});
  cases.push_back({.dims = dims, .documents = true, .masked = true});
  cases.push_back(
      {.dims = dims, .sequence_parallel = dims.tp > 1, .packed = true});
  cases.push_back({.dims = dims, .masked = true, .packed = true});
  // ATen's kernels once for each dims.
  other.dtype = "float32";
  other.kernels = "aten";
  cases.push_back(other);
  for (const char* model : {"qwen3", "biases"})
    cases.push_back(
        {.dims = dims,
         .sequence_parallel = dims.tp > 1,
         .tied = false,
         .model = model});
  for (const char* model : {"gemma2", "gemma3"}) {
    cases.push_back(
        {.dims = dims, .sequence_parallel = dims.tp > 1, .model = model});
    cases.push_back({.dims = dims, .recompute = "full", .model = model});
  }
  if (dims.dp * dims.cp > 1) {
    for (const int stage : {1, 2, 3}) {
      if (stage == 3 && dims.pp > 1)
        continue;
      LayoutCase sharded{
          .dims = dims, .sequence_parallel = dims.tp > 1, .zero_stage = stage};
      cases.push_back(sharded);
      sharded.dtype = "bfloat16";
      sharded.tied = false;
      cases.push_back(sharded);
      sharded.recompute = "full";
      if (dims.pp > 1 && stage == 1)
        sharded.schedule = "zero_bubble";
      cases.push_back(sharded);
    }
  }
  for (const char* optimizer : {"muon", "schedule_free_adamw", "sgd"}) {
    LayoutCase stepped{
        .dims = dims, .sequence_parallel = dims.tp > 1, .optimizer = optimizer};
    cases.push_back(stepped);
    for (const int stage : {1, 2, 3}) {
      if (dims.dp * dims.cp == 1 || (stage == 3 && dims.pp > 1))
        continue;
      stepped.zero_stage = stage;
      cases.push_back(stepped);
    }
  }
  // Where each stage has a layer.
  if (dims.pp <= 2) {
    LayoutCase adapted{
        .dims = dims, .sequence_parallel = dims.tp > 1, .adapter = 3};
    cases.push_back(adapted);
    adapted.recompute = "full";
    if (dims.pp > 1)
      adapted.schedule = "zero_bubble";
    cases.push_back(adapted);
    for (const char* form : {"dropout", "dora", "dora_dropout"}) {
      adapted.adapter_form = form;
      cases.push_back(adapted);
    }
  }
  if (dims.pp == 1)
    return;
  LayoutCase by_stage{.dims = dims, .recompute = "stages"};
  if (2 * dims.pp <= kMostStages) {
    by_stage.schedule = "interleaved_1f1b";
    by_stage.virtual_stages = 2;
  }
  cases.push_back(by_stage);
}

// Mixtral, which has 4 experts.
void add_mixtral(const LayoutCase& plain, std::vector<LayoutCase>& cases) {
  const bool has_replicas = plain.dims.dp * plain.dims.cp > 1;
  LayoutCase other = plain;
  other.steps = 20;
  other.zero_stage = plain.dims.ep / 2;  // 0, 1 and 2
  cases.push_back(other);
  other = plain;
  other.optimizer = "muon";
  other.zero_stage = has_replicas ? 1 : 0;
  cases.push_back(other);
  cases.push_back(
      {.dims = plain.dims, .packed = true, .model = "mixtral_with_capacity"});
}

// Cases in which a rank's stages may differ: with experts, without, or without
// layers.
void add_interleaved(const LayoutCase& plain, std::vector<LayoutCase>& cases) {
  LayoutCase other = plain;
  for (const ScheduleChoice& schedule : schedules_of(plain.dims.pp)) {
    if (schedule.virtual_stages == 1)
      continue;
    other.schedule = schedule.name;
    other.virtual_stages = schedule.virtual_stages;
    for (const char* model : {"qwen2_moe", "mixtral"}) {
      other.model = model;
      cases.push_back(other);
    }
  }
}

// Models with experts, whole on each rank and divided in every way.
void add_experts(const ParallelDims& dims, std::vector<LayoutCase>& cases) {
  const bool has_replicas = dims.dp * dims.cp > 1;
  for (const int ep : {1, 2, 4, 8}) {
    if (dims.dp * dims.cp % ep != 0)
      continue;
    LayoutCase plain{
        .dims = dims, .sequence_parallel = dims.tp > 1, .model = "mixtral"};
    plain.dims.ep = ep;
    if (ep <= 4)
      add_mixtral(plain, cases);
    LayoutCase other = plain;
    other.recompute = "full";
    other.model = "qwen2_moe";
    other.schedule = dims.pp > 1 ? "zero_bubble" : plain.schedule;
    if (has_replicas)
      other.zero_stage = dims.pp > 1 ? 1 : 3;
    cases.push_back(other);
    other = plain;
    other.zero_stage = has_replicas ? 2 : 0;
    for (const char* model : {"glm4_moe", "olmoe"}) {
      other.model = model;
      cases.push_back(other);
    }
    add_interleaved(plain, cases);
  }
}

}  // namespace

std::string name_of(const ParallelDims& dims) {
  std::string name;
  for (const Axis axis : kNamedAxes)
    name += fmt::format(
        "{}{}{}", name.empty() ? "" : "_", to_string(axis), dims[axis]);
  if (dims.ep > 1)
    name += fmt::format("_ep{}", dims.ep);
  return name;
}

std::string name_of(const LayoutCase& layout) {
  std::string name = name_of(layout.dims);
  if (layout.schedule != "1f1b")
    name += "_" + layout.schedule;
  if (layout.virtual_stages > 1)
    name += fmt::format("_v{}", layout.virtual_stages);
  if (layout.sequence_parallel)
    name += "_sp";
  if (layout.recompute != "none")
    name += "_" + layout.recompute;
  if (layout.grad_sync != "bucketed")
    name += "_" + layout.grad_sync;
  if (!layout.tied)
    name += "_untied";
  if (layout.documents)
    name += "_documents";
  if (layout.masked)
    name += "_masked";
  if (layout.packed)
    name += "_packed";
  if (layout.model != "llama")
    name += "_" + layout.model;
  if (layout.adapter > 0)
    name += fmt::format("_{}{}", layout.adapter_form, layout.adapter);
  if (layout.optimizer != "adamw")
    name += "_" + layout.optimizer;
  if (layout.steps != 6)
    name += fmt::format("_steps{}", layout.steps);
  if (layout.zero_stage > 0)
    name += fmt::format("_zero{}", layout.zero_stage);
  if (layout.dtype != "float32")
    name += "_" + layout.dtype;
  if (layout.kernels != "auto")
    name += "_" + layout.kernels;
  return name;
}

void PrintTo(const LayoutCase& layout, std::ostream* out) {
  *out << name_of(layout);
}

int sequences_of_step(int dp) {
  switch (dp) {
    case 3:
    case 6:
      return 6 * kAccumulation;
    case 5:
    case 7:
      return dp * kAccumulation;
    default:
      return kMaxRanks * kAccumulation;
  }
}

int tokens_of_sequence(int cp) {
  switch (cp) {
    case 5:
      return 60;
    case 7:
      return 56;
    default:
      return 48;
  }
}

namespace {

std::vector<std::string> model_of(const LayoutCase& layout) {
  if (layout.model == "qwen3")
    return {
        R"(model.config.architectures=["Qwen3ForCausalLM"])",
        "model.config.model_type=qwen3",
        "model.config.head_dim=8",
        "model.config.attention_bias=true",
        "model.config.use_sliding_window=true",
        "model.config.sliding_window=20",
        "model.config.max_window_layers=0"};
  if (layout.model == "gemma2")
    return {
        R"(model.config.architectures=["Gemma2ForCausalLM"])",
        "model.config.model_type=gemma2",
        "model.config.head_dim=8",
        "model.config.query_pre_attn_scalar=12",
        "model.config.sliding_window=20",
        "model.config.attn_logit_softcapping=5",
        "model.config.final_logit_softcapping=10"};
  if (layout.model == "gemma3")
    return {
        R"(model.config.architectures=["Gemma3ForCausalLM"])",
        "model.config.model_type=gemma3_text",
        "model.config.head_dim=8",
        "model.config.query_pre_attn_scalar=12",
        "model.config.sliding_window=20",
        "model.config.rope_local_base_freq=100",
        R"(model.config.layer_types=["sliding_attention","full_attention",)"
        R"("sliding_attention","full_attention"])",
        R"(model.config.rope_scaling={"rope_type":"linear","factor":4})"};
  if (layout.model.starts_with("mixtral")) {
    std::vector<std::string> overrides{
        R"(model.config.architectures=["MixtralForCausalLM"])",
        "model.config.model_type=mixtral",
        "model.config.num_local_experts=4",
        "model.config.num_experts_per_tok=2",
        "training.router_aux_loss=0.05",
        "training.router_z_loss=0.01"};
    if (layout.model == "mixtral_with_capacity")
      overrides.emplace_back("training.expert_capacity_factor=0.9");
    return overrides;
  }
  // Dense layers among sparse ones, and an expert for every token.
  if (layout.model == "qwen2_moe")
    return {
        R"(model.config.architectures=["Qwen2MoeForCausalLM"])",
        "model.config.model_type=qwen2_moe",
        "model.config.num_experts=8",
        "model.config.num_experts_per_tok=3",
        "model.config.moe_intermediate_size=24",
        "model.config.shared_expert_intermediate_size=32",
        "model.config.mlp_only_layers=[1]"};
  if (layout.model == "olmoe")
    return {
        R"(model.config.architectures=["OlmoeForCausalLM"])",
        "model.config.model_type=olmoe",
        "model.config.num_experts=8",
        "model.config.num_experts_per_tok=2"};
  // Half of each head is rotated; experts are chosen with a bias.
  if (layout.model == "glm4_moe")
    return {
        R"(model.config.architectures=["Glm4MoeForCausalLM"])",
        "model.config.model_type=glm4_moe",
        "model.config.use_qk_norm=true",
        "model.config.attention_bias=true",
        "model.config.n_routed_experts=8",
        "model.config.n_group=2",
        "model.config.num_experts_per_tok=2",
        "model.config.moe_intermediate_size=24",
        "training.router_aux_loss=0.05",
        "training.router_aux_loss_over=global_batch"};
  if (layout.model == "biases")
    return {"model.config.attention_bias=true", "model.config.mlp_bias=true"};
  return {};
}

}  // namespace

std::vector<std::string> overrides_of(const LayoutCase& layout) {
  const ParallelDims& dims = layout.dims;
  // Adam moves a weight by the whole rate even where the gradient is nothing
  // but rounding, so in bfloat16 the rate bounds how far weights may agree.
  const bool is_exact = layout.dtype == "float32";
  std::vector<std::string> overrides = {
      fmt::format("training.learning_rate={}", is_exact ? 1e-2 : 1e-3),
      "distributed.pp_engine=" + layout.schedule,
      fmt::format("distributed.pp_virtual_stages={}", layout.virtual_stages),
      fmt::format("distributed.sequence_parallel={}", layout.sequence_parallel),
      // Several buckets: all of this model's gradients are 0.15 MiB.
      "distributed.bucket_cap_mb=0.04",
      "distributed.grad_sync=" + layout.grad_sync,
      fmt::format("distributed.zero_stage={}", layout.zero_stage),
      "training.recompute=" + recompute_of(layout),
      fmt::format("training.seq_length={}", tokens_of_sequence(dims.cp)),
      fmt::format(
          "dataset.reset_attention={}", layout.documents || layout.packed),
      fmt::format(
          "training.micro_batch_size={}",
          sequences_of_step(dims.dp) / (dims.dp * kAccumulation)),
      fmt::format("training.gradient_accumulation_steps={}", kAccumulation),
      "training.optimizer=" + layout.optimizer,
      fmt::format("training.total_train_steps={}", layout.steps),
      "model.dtype=" + layout.dtype,
      "model.kernels=" + layout.kernels};
  for (const Axis axis : kNamedAxes)
    overrides.push_back(
        fmt::format("distributed.{}={}", size_key_of(axis), dims[axis]));
  overrides.push_back(fmt::format("distributed.ep_size={}", dims.ep));
  if (layout.packed)
    overrides.insert(
        overrides.end(),
        {"dataset.packing=best_fit", "dataset.long_documents=split"});
  if (layout.adapter > 0) {
    // The model is the base's.
    overrides.insert(
        overrides.end(),
        {"model.config=null",
         "model.init=pretrained",
         fmt::format("adapter.rank={}", layout.adapter),
         "adapter.targets=all-linear"});
    // B begins at zero, so that some elements of a router's A have gradients
    // that are hardly more than rounding, by whose sign Adam would move them.
    if (is_exact && layout.model != "llama")
      overrides.emplace_back("training.adam_eps=1e-5");
    if (layout.adapter_form.ends_with("dropout"))
      overrides.emplace_back("adapter.dropout=0.3");
    if (layout.adapter_form.starts_with("dora"))
      overrides.emplace_back("adapter.use_dora=true");
    return overrides;
  }
  if (layout.optimizer == "sgd")
    overrides.emplace_back("training.sgd_momentum=0.9");
  else
    overrides.push_back(fmt::format("training.adam_eps={}", kAdamEps));
  if (layout.optimizer == "muon")
    overrides.emplace_back("training.muon_dtype=float32");
  overrides.push_back(
      fmt::format("model.config.tie_word_embeddings={}", layout.tied));
  for (std::string& text : model_of(layout))
    overrides.push_back(std::move(text));
  return overrides;
}

std::vector<LayoutCase> quick_layouts() {
  return {
      // One axis.
      {.dims = {.dp = 2}, .grad_sync = "per_param", .tied = false},
      {.dims = {.dp = 3}},
      {.dims = {.tp = 2}, .recompute = "selective", .tied = false},
      {.dims = {.tp = 4}, .sequence_parallel = true},
      {.dims = {.pp = 2}, .schedule = "afab"},
      {.dims = {.pp = 2}, .schedule = "zero_bubble", .tied = false},
      {.dims = {.pp = 2}, .schedule = "interleaved_1f1b", .virtual_stages = 2},
      {.dims = {.pp = 4}, .schedule = "zero_bubble", .recompute = "full"},
      {.dims = {.cp = 2}, .recompute = "full"},
      {.dims = {.cp = 2}, .documents = true},
      {.dims = {.cp = 4}, .grad_sync = "per_param", .tied = false},
      // Losses of few tokens, unequally many on each rank.
      {.dims = {.dp = 3}, .masked = true, .zero_stage = 2},
      {.dims = {.cp = 2}, .documents = true, .masked = true},
      {.dims = {.tp = 2, .pp = 2}, .sequence_parallel = true, .masked = true},
      {.dims = {.dp = 2, .pp = 2, .cp = 2},
       .schedule = "zero_bubble",
       .masked = true},
      // Whole documents, which cp's zigzag cuts anywhere.
      {.dims = {.dp = 2}, .packed = true, .zero_stage = 1},
      {.dims = {.tp = 2}, .sequence_parallel = true, .packed = true},
      {.dims = {.pp = 2}, .schedule = "zero_bubble", .packed = true},
      {.dims = {.cp = 2}, .masked = true, .packed = true},
      {.dims = {.cp = 2}, .packed = true, .model = "qwen3"},
      {.dims = {.dp = 2, .cp = 2}, .packed = true, .model = "mixtral"},
      {.dims = {.dp = 2, .tp = 2, .cp = 2},
       .sequence_parallel = true,
       .masked = true,
       .packed = true},
      // Models with more parts than Llama's.
      {.dims = {.tp = 4}, .sequence_parallel = true, .model = "qwen3"},
      {.dims = {.cp = 2}, .model = "qwen3"},
      {.dims = {.tp = 2, .pp = 2},
       .sequence_parallel = true,
       .model = "biases"},
      {.dims = {.tp = 4}, .sequence_parallel = true, .model = "gemma2"},
      {.dims = {.cp = 2}, .recompute = "selective", .model = "gemma2"},
      {.dims = {.dp = 2, .pp = 2},
       .schedule = "zero_bubble",
       .model = "gemma2"},
      {.dims = {.tp = 2, .cp = 2},
       .sequence_parallel = true,
       .model = "gemma3"},
      {.dims = {.pp = 2}, .recompute = "full", .model = "gemma3"},
      // Experts, whole on each rank and divided.
      {.dims = {.tp = 2}, .model = "qwen2_moe"},
      {.dims = {.dp = 2, .cp = 2}, .model = "mixtral"},
      {.dims = {.dp = 2, .ep = 2},
       .grad_sync = "per_param",
       .model = "mixtral"},
      {.dims = {.cp = 2, .ep = 2}, .masked = true, .model = "mixtral"},
      {.dims = {.dp = 4, .ep = 2}, .model = "qwen2_moe", .zero_stage = 1},
      {.dims = {.dp = 2, .cp = 2, .ep = 4},
       .recompute = "full",
       .model = "mixtral",
       .zero_stage = 2},
      {.dims = {.dp = 2, .tp = 2, .ep = 2},
       .sequence_parallel = true,
       .model = "qwen2_moe"},
      {.dims = {.dp = 2, .tp = 2, .ep = 2},
       .recompute = "full",
       .model = "mixtral"},
      {.dims = {.dp = 2, .pp = 2, .ep = 2},
       .schedule = "zero_bubble",
       .model = "qwen2_moe"},
      {.dims = {.dp = 2, .pp = 2, .ep = 2},
       .schedule = "interleaved_1f1b",
       .virtual_stages = 2,
       .recompute = "stages",
       .model = "mixtral",
       .zero_stage = 1},
      // A rank with two stages, one of them without experts.
      {.dims = {.dp = 2, .pp = 2, .ep = 2},
       .schedule = "interleaved_1f1b",
       .virtual_stages = 2,
       .model = "qwen2_moe"},
      {.dims = {.dp = 4, .ep = 2}, .model = "mixtral", .zero_stage = 3},
      {.dims = {.dp = 2, .ep = 2}, .model = "qwen2_moe", .adapter = 3},
      {.dims = {.dp = 2, .tp = 2, .ep = 2},
       .sequence_parallel = true,
       .model = "mixtral",
       .zero_stage = 3,
       .adapter = 3},
      {.dims = {.dp = 2, .tp = 2, .ep = 2},
       .sequence_parallel = true,
       .recompute = "full",
       .model = "mixtral",
       .adapter = 3,
       .adapter_form = "dropout"},
      {.dims = {.tp = 2, .cp = 2, .ep = 2},
       .model = "qwen2_moe",
       .zero_stage = 1,
       .adapter = 3,
       .adapter_form = "dropout"},
      // Which tokens an expert drops is a matter of the whole sequence.
      {.dims = {.dp = 2, .ep = 2}, .model = "mixtral_with_capacity"},
      {.dims = {.cp = 4, .ep = 4},
       .packed = true,
       .model = "mixtral_with_capacity"},
      {.dims = {.tp = 2, .cp = 2, .ep = 2},
       .sequence_parallel = true,
       .recompute = "full",
       .model = "mixtral_with_capacity",
       .zero_stage = 3},
      {.dims = {.dp = 2, .pp = 2},
       .schedule = "zero_bubble",
       .model = "mixtral_with_capacity"},
      {.dims = {.tp = 2}, .sequence_parallel = true, .model = "glm4_moe"},
      {.dims = {.tp = 4}, .sequence_parallel = true, .model = "olmoe"},
      {.dims = {.cp = 2}, .model = "glm4_moe"},
      {.dims = {.pp = 2}, .recompute = "full", .model = "glm4_moe"},
      {.dims = {.dp = 2, .ep = 2}, .model = "glm4_moe", .zero_stage = 3},
      {.dims = {.dp = 2, .ep = 2}, .model = "mixtral", .dtype = "bfloat16"},
      // Two.
      {.dims = {.dp = 2, .tp = 2}, .sequence_parallel = true, .tied = false},
      {.dims = {.dp = 2, .pp = 2}, .grad_sync = "per_param"},
      {.dims = {.dp = 2, .cp = 2}, .recompute = "selective"},
      {.dims = {.tp = 2, .pp = 2},
       .sequence_parallel = true,
       .recompute = "selective"},
      {.dims = {.tp = 2, .cp = 2}, .sequence_parallel = true, .tied = false},
      {.dims = {.pp = 2, .cp = 2}, .schedule = "zero_bubble"},
      // Three, of eight ranks.
      {.dims = {.dp = 2, .tp = 2, .pp = 2},
       .schedule = "interleaved_1f1b",
       .virtual_stages = 2,
       .recompute = "stages",
       .grad_sync = "per_param"},
      {.dims = {.dp = 2, .tp = 2, .cp = 2}, .sequence_parallel = true},
      {.dims = {.dp = 2, .pp = 2, .cp = 2}, .schedule = "zero_bubble"},
      {.dims = {.tp = 2, .pp = 2, .cp = 2},
       .sequence_parallel = true,
       .recompute = "full",
       .tied = false},
      // Adapters beside a frozen model.
      {.dims = {.dp = 2}, .grad_sync = "per_param", .adapter = 3},
      {.dims = {.tp = 2}, .tied = false, .adapter = 3},
      {.dims = {.tp = 4},
       .sequence_parallel = true,
       .model = "biases",
       .adapter = 3},
      {.dims = {.pp = 2}, .schedule = "zero_bubble", .adapter = 3},
      {.dims = {.cp = 2}, .recompute = "full", .adapter = 3},
      {.dims = {.dp = 2, .tp = 2, .pp = 2},
       .sequence_parallel = true,
       .recompute = "selective",
       .adapter = 3,
       .kernels = "aten"},
      {.dims = {.dp = 2, .tp = 2}, .zero_stage = 2, .adapter = 3},
      {.dims = {.dp = 3}, .recompute = "full", .zero_stage = 3, .adapter = 3},
      {.dims = {.dp = 2}, .dtype = "bfloat16", .zero_stage = 3, .adapter = 3},
      {.dims = {.tp = 2},
       .model = "biases",
       .adapter = 3,
       .adapter_form = "dropout"},
      {.dims = {.pp = 2},
       .schedule = "zero_bubble",
       .packed = true,
       .adapter = 3,
       .adapter_form = "dropout"},
      {.dims = {.dp = 2},
       .grad_sync = "per_param",
       .dtype = "bfloat16",
       .adapter = 3,
       .adapter_form = "dropout"},
      {.dims = {.dp = 3},
       .recompute = "full",
       .zero_stage = 3,
       .adapter = 3,
       .adapter_form = "dropout"},
      {.dims = {.tp = 2, .cp = 2},
       .sequence_parallel = true,
       .recompute = "selective",
       .adapter = 3,
       .adapter_form = "dropout",
       .kernels = "aten"},
      {.dims = {.tp = 2},
       .model = "biases",
       .adapter = 3,
       .adapter_form = "dora"},
      {.dims = {.dp = 2, .tp = 2},
       .sequence_parallel = true,
       .recompute = "full",
       .zero_stage = 3,
       .adapter = 3,
       .adapter_form = "dora"},
      {.dims = {.pp = 2, .cp = 2},
       .schedule = "zero_bubble",
       .adapter = 3,
       .adapter_form = "dora",
       .kernels = "aten"},
      {.dims = {.dp = 2, .tp = 2},
       .dtype = "bfloat16",
       .zero_stage = 3,
       .adapter = 3,
       .adapter_form = "dora"},
      {.dims = {.tp = 2},
       .model = "biases",
       .adapter = 3,
       .adapter_form = "dora_dropout"},
      {.dims = {.tp = 2, .pp = 2},
       .schedule = "zero_bubble",
       .sequence_parallel = true,
       .recompute = "selective",
       .adapter = 3,
       .adapter_form = "dora_dropout"},
      {.dims = {.dp = 2},
       .recompute = "full",
       .dtype = "bfloat16",
       .adapter = 3,
       .adapter_form = "dora_dropout",
       .kernels = "aten"},
      // Sharded optimizers and gradients.
      {.dims = {.dp = 2}, .zero_stage = 1},
      {.dims = {.dp = 3}, .zero_stage = 2},
      {.dims = {.dp = 2, .tp = 2},
       .sequence_parallel = true,
       .tied = false,
       .zero_stage = 1},
      {.dims = {.dp = 2, .pp = 2}, .zero_stage = 2},
      {.dims = {.dp = 2, .pp = 2}, .schedule = "zero_bubble", .zero_stage = 1},
      {.dims = {.dp = 2, .cp = 2}, .recompute = "full", .zero_stage = 2},
      {.dims = {.dp = 2, .tp = 2, .pp = 2},
       .schedule = "interleaved_1f1b",
       .virtual_stages = 2,
       .zero_stage = 2},
      {.dims = {.dp = 2, .tp = 2},
       .sequence_parallel = true,
       .dtype = "bfloat16",
       .zero_stage = 2},
      {.dims = {.dp = 3}, .zero_stage = 3},
      {.dims = {.dp = 2, .tp = 2},
       .sequence_parallel = true,
       .tied = false,
       .zero_stage = 3},
      {.dims = {.dp = 2, .cp = 2}, .recompute = "full", .zero_stage = 3},
      {.dims = {.dp = 2},
       .recompute = "selective",
       .tied = false,
       .dtype = "bfloat16",
       .zero_stage = 3},
      // ATen's kernels.
      {.dims = {.tp = 2, .cp = 2},
       .sequence_parallel = true,
       .kernels = "aten"},
      {.dims = {.dp = 2, .pp = 2},
       .schedule = "zero_bubble",
       .tied = false,
       .kernels = "aten"},
      // bfloat16.
      {.dims = {.dp = 2}, .dtype = "bfloat16"},
      {.dims = {.tp = 2, .pp = 2},
       .sequence_parallel = true,
       .dtype = "bfloat16"},
      {.dims = {.cp = 2}, .tied = false, .dtype = "bfloat16"},
      {.dims = {.pp = 2}, .schedule = "zero_bubble", .dtype = "bfloat16"},
  };
}

std::vector<LayoutCase> aten_layouts() {
  std::vector<LayoutCase> layouts = quick_layouts();
  std::erase_if(layouts, [](const LayoutCase& layout) {
    return layout.kernels == "aten";
  });
  for (LayoutCase& layout : layouts)
    layout.kernels = "aten";
  return layouts;
}

std::vector<LayoutCase> all_layouts() {
  std::vector<LayoutCase> cases;
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const ParallelDims& dims : all_dims(ranks)) {
      if (!fits(dims))
        continue;
      add_options(dims, cases);
      add_variants(dims, cases);
      add_experts(dims, cases);
    }
  }
  return cases;
}

}  // namespace brigade
