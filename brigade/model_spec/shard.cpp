#include "brigade/model_spec/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/check.h"

namespace brigade {
namespace {

bool fits(const TensorParallelSizes& sizes, int64_t tp) {
  const int64_t kv = sizes.num_key_value_heads;
  return sizes.num_attention_heads % tp == 0 &&
         sizes.intermediate_size % tp == 0 &&
         sizes.moe_intermediate_size % tp == 0 &&
         sizes.shared_expert_size % tp == 0 && (kv % tp == 0 || tp % kv == 0);
}

// The largest that fits below `tp` and the smallest above. No more ranks than
// heads can fit.
std::string nearest(const TensorParallelSizes& sizes, int tp) {
  std::vector<int64_t> found;
  for (int64_t below = std::min<int64_t>(tp - 1, sizes.num_attention_heads);
       below >= 1;
       --below) {
    if (fits(sizes, below)) {
      found.push_back(below);
      break;
    }
  }
  for (int64_t above = tp + 1; above <= sizes.num_attention_heads; ++above) {
    if (fits(sizes, above)) {
      found.push_back(above);
      break;
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace

void validate_tensor_parallel(
    const TensorParallelSizes& sizes,
    const ParallelDims& dims,
    std::vector<std::string>& problems) {
  const int tp = dims.tp;
  if (tp < 1) {
    problems.push_back(
        fmt::format("[tensor_parallel] tp must be at least 1, but is {}", tp));
    return;
  }
  const auto add = [&](int64_t size, const char* what) {
    problems.push_back(fmt::format(
        "[tensor_parallel] {} = {} cannot be cut for tp {}; nearest tp sizes "
        "that fit this model: {}",
        what,
        size,
        tp,
        nearest(sizes, tp)));
  };
  if (sizes.num_attention_heads % tp != 0)
    add(sizes.num_attention_heads, "num_attention_heads");
  const int64_t kv = sizes.num_key_value_heads;
  if (kv % tp != 0 && tp % kv != 0)
    add(kv, "num_key_value_heads");
  if (sizes.intermediate_size % tp != 0)
    add(sizes.intermediate_size, "intermediate_size");
  if (sizes.moe_intermediate_size % tp != 0)
    add(sizes.moe_intermediate_size, "moe_intermediate_size");
  if (sizes.shared_expert_size % tp != 0)
    add(sizes.shared_expert_size, "the shared expert's size");
}

int64_t vocab_rows_per_rank(int64_t vocab_size, int tp) {
  return (vocab_size + tp - 1) / tp;
}

int64_t kv_heads_per_rank(int64_t num_key_value_heads, int tp) {
  return std::max<int64_t>(1, num_key_value_heads / tp);
}

int kv_replicas(int64_t num_key_value_heads, int tp) {
  return static_cast<int>(std::max<int64_t>(1, tp / num_key_value_heads));
}

TensorParallelSizes tensor_parallel_sizes(const DecoderConfig& config) {
  TensorParallelSizes sizes{
      .num_attention_heads = config.num_attention_heads,
      .num_key_value_heads = config.num_key_value_heads,
      .intermediate_size = config.intermediate_size};
  if (!config.experts)
    return sizes;
  sizes.moe_intermediate_size = config.experts->width;
  sizes.shared_expert_size = config.experts->shared_width;
  bool is_any_dense = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    is_any_dense = is_any_dense || !config.experts->is_sparse(layer);
  if (!is_any_dense)
    sizes.intermediate_size = 0;
  return sizes;
}

ParamShard shard_parameter(
    const ParameterRow& row,
    const ParallelDims& dims,
    const Coordinate& at,
    TokenLayout tokens) {
  const int tp = dims.tp;
  ParamShard shard{.shape = row.shape};
  // Part `index` of parts of `size` entries; the last ones may be padding.
  const auto cut = [&](int64_t size, int64_t index) {
    auto& local = shard.shape.at(static_cast<size_t>(row.cut.dim));
    const int64_t begin = std::min(index * size, local);
    shard.slice = {row.cut.dim, begin, std::min(begin + size, local)};
    local = size;
  };
  const int64_t count = row.cut.count;
  const auto entries_of = [&](int64_t units) {
    return units * row.shape.at(static_cast<size_t>(row.cut.dim)) / count;
  };
  switch (row.cut.unit) {
    case CutUnit::kVocabulary:
      cut(vocab_rows_per_rank(count, tp), at.tp);
      break;
    case CutUnit::kKeyValueHeads:
      shard.replicas = kv_replicas(count, tp);
      shard.gradient_ranks = shard.replicas;
      cut(entries_of(kv_heads_per_rank(count, tp)), at.tp / shard.replicas);
      break;
    case CutUnit::kHeads:
    case CutUnit::kFeatures:
      BRIGADE_ASSERT(count % tp == 0, "{}: {} over tp {}", row.name, count, tp);
      cut(entries_of(count / tp), at.tp);
      break;
    case CutUnit::kWholeOnTokens:
      shard.replicas = tp;
      shard.gradient_ranks = tokens == TokenLayout::kSharded ? tp : 1;
      break;
    case CutUnit::kWholeOnHeads:
    case CutUnit::kWholeOnParts:
      shard.replicas = tp;
      shard.gradient_ranks = tp;
      break;
  }
  shard.is_first_replica = at.tp % shard.replicas == 0;
  return shard;
}

}  // namespace brigade
