#include "brigade/planner/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/model_spec/shard.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade::planner {
namespace {

using Problems = std::vector<std::string>;

constexpr const char* kForm =
    "dp8-tp4-pp2-cp1-ep1-zero0-sp-mb1-1f1b-v1-full (parts may be left out)";

// "tp4" sets tp to 4.
bool read_number_part(std::string_view part, Layout& layout) {
  const auto put = [&](std::string_view prefix, int64_t low, auto& target) {
    if (!part.starts_with(prefix))
      return false;
    const auto value = parse_number<int64_t>(part.substr(prefix.size()));
    if (!value || *value < low || *value > 10'000'000)
      return false;
    target = static_cast<std::remove_reference_t<decltype(target)>>(*value);
    return true;
  };
  for (const Axis axis : kNamedAxes) {
    if (put(to_string(axis), 1, layout.dims[axis]))
      return true;
  }
  return put("ep", 1, layout.dims.ep) || put("mb", 1, layout.micro_batch) ||
         put("v", 1, layout.virtual_stages) ||
         (put("zero", 0, layout.zero_stage) && layout.zero_stage <= 3);
}

bool read_word_part(std::string_view part, Layout& layout) {
  if (part == "sp") {
    layout.tokens = TokenLayout::kSharded;
    return true;
  }
  const auto recompute = find_choice<Recompute>(part);
  const auto schedule = find_choice<ScheduleKind>(part);
  layout.recompute = recompute.value_or(layout.recompute);
  layout.schedule = schedule.value_or(layout.schedule);
  return recompute || schedule;
}

void check_tokens(
    const Layout& layout,
    const Batch& batch,
    Problems& problems) {
  const size_t before = problems.size();
  validate_sequence_partition(batch.sequence_tokens, layout.dims, problems);
  const int64_t tokens =
      layout.micro_batch * tokens_per_rank(batch.sequence_tokens, layout.dims);
  if (problems.size() == before && layout.tokens == TokenLayout::kSharded &&
      tokens % layout.dims.tp != 0)
    problems.push_back(fmt::format(
        "[planner] sequence parallel: {} tokens of a micro-batch do not divide "
        "by tp {}",
        tokens,
        layout.dims.tp));
}

void check_experts(
    const Layout& layout,
    const ModelShape& shape,
    Problems& problems) {
  const int64_t experts = shape.experts ? shape.experts->num_experts : 0;
  if (layout.dims.ep > 1 && experts == 0)
    problems.push_back(fmt::format(
        "[planner] ep {}: {} has no experts to divide",
        layout.dims.ep,
        shape.name));
  else if (experts % layout.dims.ep != 0)
    problems.push_back(fmt::format(
        "[planner] ep {} does not divide the {} experts",
        layout.dims.ep,
        experts));
}

void check_pipeline(
    const Layout& layout,
    const ModelShape& shape,
    int64_t micro_batch_count,
    Problems& problems) {
  if (layout.dims.pp == 1 && layout.virtual_stages > 1) {
    problems.push_back(fmt::format(
        "[planner] {} virtual stages need a pp of at least 2",
        layout.virtual_stages));
    return;
  }
  validate_pipeline_size(
      layout.schedule,
      {.ranks = layout.dims.pp,
       .virtual_stages = layout.virtual_stages,
       .micro_batches =
           static_cast<int>(std::min<int64_t>(micro_batch_count, INT32_MAX))},
      problems);
  // The first and the last stage may hold no layer (layer_partition.h).
  if (layout.stages() > shape.layers + 2)
    problems.push_back(fmt::format(
        "[planner] {} stages for {} layers; at most {} can be cut",
        layout.stages(),
        shape.layers,
        shape.layers + 2));
}

}  // namespace

std::string to_string(const Layout& layout) {
  std::string sizes;
  for (const Axis axis : kNamedAxes)
    sizes += fmt::format("{}{}-", to_string(axis), layout.dims[axis]);
  if (layout.dims.ep > 1)
    sizes += fmt::format("ep{}-", layout.dims.ep);
  return fmt::format(
      "{}zero{}{}-mb{}-{}-v{}-{}",
      sizes,
      layout.zero_stage,
      layout.tokens == TokenLayout::kSharded ? "-sp" : "",
      layout.micro_batch,
      to_string(layout.schedule),
      layout.virtual_stages,
      to_string(layout.recompute));
}

Layout parse_layout(std::string_view text) {
  Layout layout;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find('-', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!read_number_part(part, layout) && !read_word_part(part, layout))
      throw ConfigError(fmt::format(
          "[planner] layout '{}': '{}' is no part of a layout; the form is {}",
          text,
          part,
          kForm));
    begin = end + 1;
  }
  return layout;
}

int64_t micro_batches(const Layout& layout, const Batch& batch) {
  const int64_t at_once = layout.dims.batch_parts() * layout.micro_batch;
  BRIGADE_ASSERT(batch.sequences % at_once == 0);
  return batch.sequences / at_once;
}

void validate_layout(
    const Layout& layout,
    const ModelShape& shape,
    const Batch& batch,
    int devices,
    Problems& problems) {
  const size_t before = problems.size();
  layout.dims.validate(devices, problems);
  if (problems.size() > before)
    return;
  check_experts(layout, shape, problems);
  const bool has_experts = shape.experts.has_value();
  validate_tensor_parallel(
      {.num_attention_heads = shape.heads,
       .num_key_value_heads = shape.kv_heads,
       .intermediate_size =
           shape.layers_with(LayerMlp::kOne) > 0 ? shape.intermediate : 0,
       .moe_intermediate_size = has_experts ? shape.experts->width : 0,
       .shared_expert_size = has_experts ? shape.experts->shared_width : 0},
      layout.dims,
      problems);
  check_tokens(layout, batch, problems);
  if (batch.sequences % (layout.dims.batch_parts() * layout.micro_batch) != 0) {
    problems.push_back(fmt::format(
        "[planner] a global batch of {} sequences does not divide by {} * "
        "micro-batch {}",
        batch.sequences,
        layout.dims.product(kBatchAxes),
        layout.micro_batch));
    return;
  }
  check_pipeline(layout, shape, micro_batches(layout, batch), problems);
  if (layout.zero_stage > 0 && layout.dims.replicas() == 1)
    problems.push_back(fmt::format(
        "[planner] zero stage {} shards over {}, which is 1",
        layout.zero_stage,
        layout.dims.product(kReplicaAxes)));
  if (layout.zero_stage > 2 && layout.dims.pp > 1)
    problems.push_back(fmt::format(
        "[planner] zero stage 3 with pp {}: weights would be gathered for "
        "every micro-batch of every stage; use zero stage 1",
        layout.dims.pp));
}

std::string missing_in_train(const Layout& layout) {
  const bool is_beyond =
      layout.zero_stage >= 2 && layout.schedule == ScheduleKind::kZeroBubble;
  return is_beyond ? "distributed.zero_stage" : "";
}

}  // namespace brigade::planner
