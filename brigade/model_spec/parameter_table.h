// One table of all parameters of a model. A row says everything about a
// parameter that someone outside brigade/model needs: tensor parallel reads the
// cut, initialisation the first value, the optimizer the decay, the pipeline
// the place, checkpoints and exports the name and the group. None of them knows
// names.
//
// Core layer: no libtorch, no files.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/model_spec/model_description.h"
#include "brigade/model_spec/model_part.h"
#include "brigade/options/mup.h"

namespace brigade {

// What tensor parallel divides among its ranks.
enum class CutUnit {
  kWholeOnTokens,  // nothing; each rank applies it to the tokens that it has
  kWholeOnHeads,   // nothing; each rank applies it to its own heads
  kWholeOnParts,   // nothing; its other side meets each rank's own part
  kHeads,          // query heads
  kKeyValueHeads,  // with fewer than ranks, several ranks hold the same
  kFeatures,       // of the MLP
  kVocabulary,     // entries, padded to equal parts
};

inline constexpr int kNotCut = -1;

// Along `dim` lie `count` units of shape[dim] / count entries each.
struct TensorCut {
  CutUnit unit = CutUnit::kWholeOnTokens;
  int dim = kNotCut;
  int64_t count = 0;
  bool operator==(const TensorCut&) const = default;
};

// What a parameter begins with.
enum class Initialization {
  kZeros,
  kOnes,
  kConstant,  // initial_value
  kNormal,    // (0, initial_std)
  kUniform,   // (-initial_bound, initial_bound)
  kRowNorms,  // those of the base model's weight that it scales
};

// What a parameter is to the model. Matrices multiply hidden states, those of
// experts too; the embedding is looked up, the head gives logits, the router
// chooses experts, and a bias of its own takes part in that alone.
enum class ParameterRole {
  kMatrix,
  kEmbedding,
  kHead,
  kRouter,
  kRouterBias,  // no gradient reaches it: see model/router.h
  kNorm,
  kBias,
};

// Which part of the model holds it.
enum class Place { kEmbedding, kLayer, kHead };

// Which rows of the weight a step's gradient reaches.
enum class GradientRows { kAll, kOfTheStepsTokens };

// Which files hold its values.
enum class StoredIn {
  kModel,      // checkpoints, and the model that is exported of them
  kAdapter,    // checkpoints, and the adapter that is exported of them
  kBaseModel,  // the folder of the base model, which checkpoints only name
};

inline constexpr int64_t kNoLayer = -1;
inline constexpr int64_t kNoExpert = -1;

// Weights that forward reads together: the embedding, one layer, or what comes
// after the layers.
struct ModelUnit {
  Place place = Place::kLayer;
  int64_t layer = kNoLayer;  // of kLayer
  auto operator<=>(const ModelUnit&) const = default;
};

// All that is said of one parameter of a model.
struct ParameterRow {
  std::string name;            // Hugging Face's: model.layers.0.mlp.up_proj...
  std::vector<int64_t> shape;  // a linear's weight: [out, in]
  TensorCut cut;
  Initialization initialization = Initialization::kNormal;
  double initial_std = 0;    // of kNormal
  double initial_bound = 0;  // of kUniform
  double initial_value = 0;  // of kConstant
  MupFactors mup;            // initial values have them already
  // One that does not has no gradient and no state of the optimizer.
  bool trains = true;
  StoredIn stored_in = StoredIn::kModel;
  bool decays = true;  // matrices; norms and biases do not
  ParameterRole role = ParameterRole::kMatrix;
  Place place = Place::kLayer;
  int64_t layer = kNoLayer;    // of kLayer
  int64_t expert = kNoExpert;  // that it belongs to, of the layer's
  GradientRows gradient_rows = GradientRows::kAll;
  // Parameters of one group are multiplied with the same input, as one product:
  // q, k and v; gate and up. They follow each other in the table, and the model
  // makes them as one GroupedWeights (brigade/model/weights.h). The name is
  // the one under which other programs store the whole group, stacked along dim
  // 0 in the table's order; empty: no group.
  std::string group;
  // Where it is an expert's matrix: the name under which other programs store
  // those of all experts of the layer as one tensor [E, rows, columns], and its
  // first row when that is read as a matrix [E * rows, columns].
  std::string stack;
  int64_t stack_row = 0;
  // Whether it is float32 whatever the model's dtype is.
  bool is_float32 = false;
  // The embedding of a model whose head is tied: the name that the head would
  // have. The last stage then holds a copy. Empty: not tied.
  std::string tied_head;

  int64_t numel() const;
  ModelUnit unit() const { return {place, layer}; }
  bool operator==(const ParameterRow&) const = default;
};

// All parameters of the whole model, in the order in which transformers
// registers them: embedding; per layer q, k, v, o (a weight before its bias),
// q_norm, k_norm, gate, up, down (or the router, gate, up and down of each
// expert, the shared expert, its gate), the norms; the last norm; the head,
// which a tied model does not have. A model with an adapter also has the
// adapter's, each behind those of its unit (adapter.h); the others are frozen.
std::vector<ParameterRow> list_parameters(const ModelDescription& model);
std::vector<ParameterRow> list_parameters(const DecoderConfig& config);

// The parameters that one part of the model holds, a tied head's copy of the
// embedding included.
std::vector<ParameterRow> list_parameters(
    const ModelDescription& model,
    const ModelPart& part);

// Number of weights; a tied head counts once.
int64_t parameter_count(const DecoderConfig& config);

// Whether a part holds the row only because its head is tied to the embedding,
// which belongs to another part.
bool is_copy_for_head(const ParameterRow& row, const ModelPart& part);

// Whether a step's gradient on this part has rows for the step's tokens alone:
// the embedding's, where the part has not the tied head as well.
bool is_row_sparse(const ParameterRow& row, const ModelPart& part);

// Tensors that files of older programs hold besides the parameters, and that
// are not needed.
bool is_obsolete_buffer(std::string_view name);

}  // namespace brigade
