// Every parameter of a model by its Hugging Face name.
// PURE: no libtorch, no files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/model_spec/llama_config.h"
#include "brigade/model_spec/shard.h"

namespace brigade {

enum class ParamKind {
  kEmbedding,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kInputNorm,
  kPostAttentionNorm,
  kFinalNorm,
  kHead,
};

inline constexpr int64_t kNoLayer = -1;
// The name of the one of kind kEmbedding.
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

struct ParamInfo {
  std::string name;            // model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> shape;  // a linear's weight: [out, in]
  ParamKind kind;
  int64_t layer;  // kNoLayer for the embedding, the last norm and the head
  bool operator==(const ParamInfo&) const = default;
};

// All parameters of the whole model, in the order in which transformers
// registers them: embedding; per layer q, k, v, o (a weight before its bias),
// q_norm, k_norm, gate, up, down, the two norms; the last norm; the head, which
// a tied model does not have.
std::vector<ParamInfo> list_parameters(const LlamaConfig& config);

// The elements of one parameter.
int64_t param_numel(const ParamInfo& param);

// What decides how tensor parallelism cuts them.
TensorParallelSizes tensor_parallel_sizes(const LlamaConfig& config);

}  // namespace brigade
