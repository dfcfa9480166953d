#include "brigade/planner/model_shape.h"

#include "brigade/model_spec/model_description.h"

namespace brigade::planner {
namespace {

int64_t norm_parameters(const ModelShape& shape) {
  return shape.hidden * shape.norm_vectors;
}

}  // namespace

ModelShape shape_of(const DecoderConfig& config, const std::string& name) {
  ModelShape shape = {
      .name = name,
      .layers = static_cast<int>(config.num_hidden_layers),
      .hidden = config.hidden_size,
      .heads = config.num_attention_heads,
      .kv_heads = config.num_key_value_heads,
      .head_dim = config.head_dim,
      .intermediate = config.intermediate_size,
      .vocab = config.vocab_size,
      .tied_head = config.tie_word_embeddings,
      .qkv_bias = config.qkv_bias,
      .o_bias = config.o_bias,
      .mlp_bias = config.mlp_bias,
      .qk_norm = config.qk_norm,
      .experts = config.experts};
  for (const LayerDescription& layer : describe_model(config).layers) {
    shape.norms_all_heads = layer.attention.norms_all_heads;
    shape.shared_gate =
        shape.shared_gate || (layer.experts && layer.experts->shared &&
                              layer.experts->shared->has_gate);
    shape.norms = static_cast<int>(layer.norms().size());
    shape.windows.push_back(layer.attention.sliding_window.value_or(0));
  }
  return shape;
}

int ModelShape::layers_with(LayerMlp kind, const LayerRange& among) const {
  int count = 0;
  for (int layer = among.begin; layer < among.end; ++layer)
    count += mlp_of(layer) == kind ? 1 : 0;
  return count;
}

int64_t layer_matrix_parameters(const ModelShape& shape, LayerMlp mlp) {
  const bool has_router = mlp == LayerMlp::kExperts && shape.experts;
  return shape.hidden * (2 * shape.query_width() + 2 * shape.key_value_width() +
                         shape.mlp_width(mlp) * (shape.up_matrices + 1) +
                         (has_router ? shape.experts->num_experts : 0));
}

int64_t expert_parameters(const ModelShape& shape) {
  return shape.experts ? shape.experts->num_experts * shape.experts->width *
                             shape.hidden * (shape.up_matrices + 1)
                       : 0;
}

int64_t layer_parameters(const ModelShape& shape, LayerMlp mlp) {
  const int64_t q = shape.query_width();
  const int64_t kv = shape.key_value_width();
  int64_t count = layer_matrix_parameters(shape, mlp);
  if (shape.qkv_bias)
    count += q + 2 * kv;
  if (shape.o_bias)
    count += shape.hidden;
  if (mlp == LayerMlp::kExperts)
    count += shape.shared_gate ? shape.hidden : 0;
  else if (shape.mlp_bias)
    count += shape.up_matrices * shape.intermediate + shape.hidden;
  if (shape.qk_norm)
    count += shape.norms_all_heads ? q + kv : 2 * shape.head_dim;
  return count + shape.norms * norm_parameters(shape);
}

int64_t embedding_parameters(const ModelShape& shape) {
  return (shape.vocab + shape.learned_positions) * shape.hidden;
}

int64_t head_parameters(const ModelShape& shape) {
  return shape.vocab * shape.hidden + norm_parameters(shape);
}

int64_t range_parameters(const ModelShape& shape, const LayerRange& range) {
  const auto all = [&](LayerMlp mlp) {
    return shape.layers_with(mlp, range) * layer_parameters(shape, mlp);
  };
  return all(LayerMlp::kOne) + all(LayerMlp::kExperts);
}

namespace {

// The parameters of one layer's experts that a token visits.
int64_t visited_experts(const ModelShape& shape) {
  return shape.experts ? expert_parameters(shape) / shape.experts->num_experts *
                             shape.experts->num_experts_per_tok
                       : 0;
}

}  // namespace

int64_t total_parameters(const ModelShape& shape) {
  const int64_t shared = shape.tied_head ? shape.vocab * shape.hidden : 0;
  return embedding_parameters(shape) + head_parameters(shape) - shared +
         range_parameters(shape, {0, shape.layers}) +
         shape.layers_with(LayerMlp::kExperts) * expert_parameters(shape);
}

int64_t active_parameters(const ModelShape& shape) {
  return total_parameters(shape) -
         shape.layers_with(LayerMlp::kExperts) *
             (expert_parameters(shape) - visited_experts(shape));
}

double model_flops_per_token(const ModelShape& shape, int64_t sequence_tokens) {
  const double multiplied = static_cast<double>(
      range_parameters(shape, {0, shape.layers}) +
      shape.layers_with(LayerMlp::kExperts) * visited_experts(shape) +
      head_parameters(shape));
  const double attention = 12.0 * shape.layers *
                           static_cast<double>(shape.query_width()) *
                           static_cast<double>(sequence_tokens);
  return 6 * multiplied + attention;
}

}  // namespace brigade::planner
