// The sizes of a decoder-only transformer, as far as time and memory depend on
// them.
//
// PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/topology/layer_partition.h"

namespace brigade::planner {

// What a layer has between its norms and the residual.
enum class LayerMlp {
  kOne,
  kExperts,  // and a router, and a shared expert where the model has one
};

struct ModelShape {
  std::string name;
  int layers = 0;
  int64_t hidden = 0;        // C
  int64_t heads = 0;         // H
  int64_t kv_heads = 0;      // at most H
  int64_t head_dim = 0;      // D
  int64_t intermediate = 0;  // F
  int64_t vocab = 0;         // V
  // Matrices [F, C] of an MLP beside the one of shape [C, F]; 2: with a gate.
  int64_t up_matrices = 2;
  int64_t learned_positions = 0;  // rows of a position embedding; 0: rotary
  bool tied_head = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool norms_all_heads = false;  // qk_norm is over all heads together
  int64_t norm_vectors = 1;      // of a norm, [C] each; 2: with a bias
  // Bytes per element of a mask that each residual keeps; 0: it has none.
  double mask_bytes = 0;
  int norms = 2;  // of a layer, over C; 4 in Gemma 2 and 3
  // Tokens that a query sees in each layer; 0: all before it. Empty: 0
  // everywhere.
  std::vector<int64_t> windows;
  std::optional<ExpertsConfig> experts;  // of the layers that it names
  bool shared_gate = false;              // of the shared expert

  int64_t query_width() const { return heads * head_dim; }
  int64_t key_value_width() const { return kv_heads * head_dim; }
  int64_t window(int layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  LayerMlp mlp_of(int layer) const {
    return experts && experts->is_sparse(layer) ? LayerMlp::kExperts
                                                : LayerMlp::kOne;
  }
  // The hidden width of the MLP, or of the shared expert.
  int64_t mlp_width(LayerMlp kind) const {
    return kind == LayerMlp::kOne ? intermediate
           : experts              ? experts->shared_width
                                  : 0;
  }
  // The number of layers of a kind, among some or all layers.
  int layers_with(LayerMlp kind, const LayerRange& among) const;
  int layers_with(LayerMlp kind) const {
    return layers_with(kind, {0, layers});
  }
};

ModelShape shape_of(const DecoderConfig& config, const std::string& name);

// Numbers of weights; for a layer with experts without those that the router
// chooses from: expert_parameters().
int64_t layer_parameters(
    const ModelShape& shape,
    LayerMlp mlp = LayerMlp::kOne);
int64_t layer_matrix_parameters(  // those of matrices alone
    const ModelShape& shape,
    LayerMlp mlp = LayerMlp::kOne);
// The weights of several layers together.
int64_t range_parameters(const ModelShape& shape, const LayerRange& range);
// All E experts of one layer; they are matrices. 0: the model has none.
int64_t expert_parameters(const ModelShape& shape);
int64_t embedding_parameters(const ModelShape& shape);  // positions included
// The final norm and the head; the head's matrix also where it is tied, because
// the last stage of a pipeline holds a copy.
int64_t head_parameters(const ModelShape& shape);
// A tied head counts once.
int64_t total_parameters(const ModelShape& shape);
// The parameters that a token visits: of each layer's experts k, and all else.
int64_t active_parameters(const ModelShape& shape);

// FLOPs of the products of one token's forward and backward pass, as PaLM's
// appendix B counts them for MFU: 6 N + 12 L (H D) T. N leaves the embedding
// tables out that multiply nothing, and of experts those that a token does not
// visit; attention counts as if no mask were.
double model_flops_per_token(const ModelShape& shape, int64_t sequence_tokens);

}  // namespace brigade::planner
