#include "brigade/model_spec/param_names.h"

#include <fmt/format.h>

#include <utility>

namespace brigade {
namespace {

class ParamList {
 public:
  void enter_layer(int64_t layer) {
    layer_ = layer;
    prefix_ = fmt::format("model.layers.{}.", layer);
  }
  void leave_layers() {
    layer_ = kNoLayer;
    prefix_.clear();
  }
  void add(ParamKind kind, const char* name, std::vector<int64_t> shape) {
    params_.push_back({prefix_ + name, std::move(shape), kind, layer_});
  }
  std::vector<ParamInfo> take() { return std::move(params_); }

 private:
  int64_t layer_ = kNoLayer;
  std::string prefix_;
  std::vector<ParamInfo> params_;
};

void add_attention(const LlamaConfig& config, ParamList& list) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  list.add(ParamKind::kQ, "self_attn.q_proj.weight", {q_width, hidden});
  if (config.qkv_bias)
    list.add(ParamKind::kQBias, "self_attn.q_proj.bias", {q_width});
  list.add(ParamKind::kK, "self_attn.k_proj.weight", {kv_width, hidden});
  if (config.qkv_bias)
    list.add(ParamKind::kKBias, "self_attn.k_proj.bias", {kv_width});
  list.add(ParamKind::kV, "self_attn.v_proj.weight", {kv_width, hidden});
  if (config.qkv_bias)
    list.add(ParamKind::kVBias, "self_attn.v_proj.bias", {kv_width});
  list.add(ParamKind::kO, "self_attn.o_proj.weight", {hidden, q_width});
  if (config.o_bias)
    list.add(ParamKind::kOBias, "self_attn.o_proj.bias", {hidden});
  if (config.qk_norm) {
    list.add(ParamKind::kQNorm, "self_attn.q_norm.weight", {config.head_dim});
    list.add(ParamKind::kKNorm, "self_attn.k_norm.weight", {config.head_dim});
  }
}

void add_mlp(const LlamaConfig& config, ParamList& list) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  list.add(ParamKind::kGate, "mlp.gate_proj.weight", {inner, hidden});
  if (config.mlp_bias)
    list.add(ParamKind::kGateBias, "mlp.gate_proj.bias", {inner});
  list.add(ParamKind::kUp, "mlp.up_proj.weight", {inner, hidden});
  if (config.mlp_bias)
    list.add(ParamKind::kUpBias, "mlp.up_proj.bias", {inner});
  list.add(ParamKind::kDown, "mlp.down_proj.weight", {hidden, inner});
  if (config.mlp_bias)
    list.add(ParamKind::kDownBias, "mlp.down_proj.bias", {hidden});
}

}  // namespace

std::vector<ParamInfo> list_parameters(const LlamaConfig& config) {
  const int64_t hidden = config.hidden_size;
  ParamList list;
  list.add(ParamKind::kEmbedding, kEmbeddingName, {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    list.enter_layer(layer);
    add_attention(config, list);
    add_mlp(config, list);
    list.add(ParamKind::kInputNorm, "input_layernorm.weight", {hidden});
    list.add(
        ParamKind::kPostAttentionNorm,
        "post_attention_layernorm.weight",
        {hidden});
  }
  list.leave_layers();
  list.add(ParamKind::kFinalNorm, "model.norm.weight", {hidden});
  if (!config.tie_word_embeddings)
    list.add(ParamKind::kHead, "lm_head.weight", {config.vocab_size, hidden});
  return list.take();
}

int64_t param_numel(const ParamInfo& param) {
  int64_t numel = 1;
  for (int64_t dim : param.shape)
    numel *= dim;
  return numel;
}

TensorParallelSizes tensor_parallel_sizes(const LlamaConfig& config) {
  return {
      config.num_attention_heads,
      config.num_key_value_heads,
      config.head_dim,
      config.intermediate_size,
      config.vocab_size};
}

}  // namespace brigade
