#include "brigade/model_spec/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

enum class Cut {
  kVocab,          // rows of the vocabulary, padded
  kKvHeads,        // rows of kv heads, replicated when there are few
  kRows,           // equal parts of dim 0
  kColumns,        // equal parts of dim 1
  kWholeOnTokens,  // applied to every token that this rank has
  kWholeOnHeads,   // applied by each rank to its own heads
};

bool ends_with(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() &&
         name.substr(name.size() - suffix.size()) == suffix;
}

Cut cut_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Cut> kCuts[] = {
      {".embed_tokens.weight", Cut::kVocab},
      {".self_attn.q_proj.weight", Cut::kRows},
      {".self_attn.q_proj.bias", Cut::kRows},
      {".self_attn.k_proj.weight", Cut::kKvHeads},
      {".self_attn.k_proj.bias", Cut::kKvHeads},
      {".self_attn.v_proj.weight", Cut::kKvHeads},
      {".self_attn.v_proj.bias", Cut::kKvHeads},
      {".self_attn.o_proj.weight", Cut::kColumns},
      {".self_attn.o_proj.bias", Cut::kWholeOnTokens},
      {".self_attn.q_norm.weight", Cut::kWholeOnHeads},
      {".self_attn.k_norm.weight", Cut::kWholeOnHeads},
      {".mlp.gate_proj.weight", Cut::kRows},
      {".mlp.gate_proj.bias", Cut::kRows},
      {".mlp.up_proj.weight", Cut::kRows},
      {".mlp.up_proj.bias", Cut::kRows},
      {".mlp.down_proj.weight", Cut::kColumns},
      {".mlp.down_proj.bias", Cut::kWholeOnTokens},
      {".input_layernorm.weight", Cut::kWholeOnTokens},
      {".post_attention_layernorm.weight", Cut::kWholeOnTokens},
      {"model.norm.weight", Cut::kWholeOnTokens},
      {"lm_head.weight", Cut::kVocab},
  };
  for (const auto& [suffix, cut] : kCuts) {
    if (name == suffix || ends_with(name, suffix))
      return cut;
  }
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[tensor_parallel] no rule says how to cut parameter '{}'; add one "
          "to tensor_parallel/shard.cpp",
          name));
}

bool fits(const TensorParallelSizes& sizes, int64_t tp) {
  const int64_t kv = sizes.num_key_value_heads;
  return sizes.num_attention_heads % tp == 0 &&
         sizes.intermediate_size % tp == 0 && (kv % tp == 0 || tp % kv == 0);
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
    int tp,
    std::vector<std::string>& problems) {
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

ParamShard shard_parameter(
    std::string_view name,
    const std::vector<int64_t>& full_shape,
    const TensorParallelSizes& sizes,
    int tp,
    int tp_rank,
    TokenLayout tokens) {
  ParamShard shard{.shape = full_shape};
  // Part `index` of parts of `rows` rows; the last ones may be padding.
  const auto cut = [&](int dim, int64_t rows, int64_t index) {
    auto& local = shard.shape.at(static_cast<size_t>(dim));
    shard.dim = dim;
    shard.begin = std::min(index * rows, local);
    shard.end = std::min(shard.begin + rows, local);
    local = rows;
  };
  const auto equal_parts = [&](int dim) {
    const int64_t size = full_shape.at(static_cast<size_t>(dim));
    BRIGADE_ASSERT(size % tp == 0, "{}: {} over tp {}", name, size, tp);
    cut(dim, size / tp, tp_rank);
  };
  const Cut kind = cut_of(name);
  switch (kind) {
    case Cut::kVocab:
      cut(0, vocab_rows_per_rank(sizes.vocab_size, tp), tp_rank);
      break;
    case Cut::kKvHeads:
      shard.replicas = kv_replicas(sizes.num_key_value_heads, tp);
      shard.gradient_ranks = shard.replicas;
      cut(0,
          kv_heads_per_rank(sizes.num_key_value_heads, tp) * sizes.head_dim,
          tp_rank / shard.replicas);
      break;
    case Cut::kRows:
      equal_parts(0);
      break;
    case Cut::kColumns:
      equal_parts(1);
      break;
    case Cut::kWholeOnTokens:
      shard.replicas = tp;
      shard.gradient_ranks = tokens == TokenLayout::kSharded ? tp : 1;
      break;
    case Cut::kWholeOnHeads:
      shard.replicas = tp;
      shard.gradient_ranks = tp;
      break;
  }
  shard.is_first_replica = tp_rank % shard.replicas == 0;
  return shard;
}

}  // namespace brigade
