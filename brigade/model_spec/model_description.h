// What a model computes, layer by layer: everything that the modules of
// brigade/model are built from. An architecture is a function from its config
// to such a description; nothing that reads one knows which architecture it
// came from.
//
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/options/adapter.h"
#include "brigade/options/mup.h"

namespace brigade {

// What an RMSNorm multiplies by: its weight w, or 1 + w.
enum class NormScale { kWeight, kOnePlusWeight };

// An RMSNorm of a layer, or the final one.
struct NormDescription {
  std::string name;  // of its module: "input_layernorm"
  double eps = 1e-6;
  NormScale scale = NormScale::kWeight;
};

// What is applied to the gate before it is multiplied with up.
enum class Activation { kSilu, kGeluTanh };

// The rotary embedding of a layer: what its frequencies are made from.
struct RotaryDescription {
  double theta = 10000.0;
  std::optional<RopeScaling> scaling;
  // The share of a head's dims that is rotated, the first ones.
  double share = 1.0;
  bool operator==(const RotaryDescription&) const = default;
};

// The attention of a layer.
struct AttentionDescription {
  int64_t num_heads = 0;            // H
  int64_t num_key_value_heads = 0;  // Hkv; divides H
  int64_t head_dim = 0;             // D
  // The scale of the scores; absent: 1 / sqrt(D).
  std::optional<double> scale;
  // Scores become cap * tanh(score / cap).
  std::optional<double> logit_soft_cap;
  // Tokens that a query sees, itself included; absent: all before it.
  std::optional<int64_t> sliding_window;
  bool qkv_bias = false;
  bool o_bias = false;
  // RMSNorm over each head of q and of k, before they are rotated.
  std::optional<NormDescription> q_norm;
  std::optional<NormDescription> k_norm;
  // Both are over all heads together instead (OLMoE).
  bool norms_all_heads = false;
  RotaryDescription rotary;
};

// down(activation(gate(x)) * up(x)).
struct MlpDescription {
  int64_t width = 0;  // F
  Activation activation = Activation::kSilu;
  bool bias = false;  // of all three
};

// What a router makes of its logits.
enum class RouterScore {
  kSoftmax,  // over all experts
  kSigmoid,  // of each (DeepSeek-V3)
};

// Which experts a token visits, and with which weights: the k of the best
// scores, of equal ones the first, weighted by their scores.
struct RouterDescription {
  RouterScore score = RouterScore::kSoftmax;
  // Whether the weights of the k are divided by their sum.
  bool normalises = false;
  double scale = 1.0;  // of the weights, at last
  // Whether a bias that no gradient reaches is added to the scores for the
  // choice alone (DeepSeek-V3).
  bool has_bias = false;
  // Experts are chosen from the `chosen_groups` best of `groups` equal groups,
  // whose score is the sum of their two best.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

// An expert that every token visits besides those that the router chooses.
struct SharedExpertDescription {
  std::string name;  // of its module: "shared_expert"
  MlpDescription mlp;
  // Whether it is multiplied by the sigmoid of a linear of the token,
  // NAME_gate.
  bool has_gate = false;
};

// The sum of k of E MLPs of each token, and the shared one.
struct ExpertsDescription {
  int64_t count = 0;      // E
  int64_t per_token = 0;  // k
  MlpDescription expert;  // each
  RouterDescription router;
  std::optional<SharedExpertDescription> shared;
  // What files call them: the block, and an expert's linears.
  std::string block = "mlp";
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
};

//   x = x + after_attention(attention(before_attention(x)))
//   x = x + after_mlp(mlp(before_mlp(x)))
// An absent norm is the identity.
struct LayerDescription {
  NormDescription before_attention;
  AttentionDescription attention;
  std::optional<NormDescription> after_attention;
  NormDescription before_mlp;
  MlpDescription mlp;
  std::optional<ExpertsDescription> experts;  // in place of the MLP
  std::optional<NormDescription> after_mlp;

  // All norms of the layer over the hidden size, in the order in which
  // transformers registers them.
  std::vector<NormDescription> norms() const;
};

struct ModelDescription {
  int64_t vocab_size = 0;   // V
  int64_t hidden_size = 0;  // C
  // Embeddings are multiplied by it, rounded to the model's dtype.
  std::optional<double> embedding_scale;
  std::vector<LayerDescription> layers;
  NormDescription final_norm;
  // Logits become cap * tanh(logit / cap).
  std::optional<double> final_logit_soft_cap;
  bool has_tied_head = false;  // the head's weight is the embedding's
  double initial_std = 0.02;   // of matrices and of the embedding
  // Trains in place of the model, where it has a rank; no part of the config
  // that a model comes with.
  AdapterOptions adapter;
  MupOptions mup;  // nor is this
};

// What a config says of each layer; the config is one that was parsed without
// problems.
ModelDescription describe_model(const DecoderConfig& config);

}  // namespace brigade
