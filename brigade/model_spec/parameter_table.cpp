#include "brigade/model_spec/parameter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "brigade/model_spec/adapter.h"

namespace brigade {
namespace {

constexpr const char* kHeadName = "lm_head.weight";

class Table {
 public:
  explicit Table(const ModelDescription& model)
      : hidden_(model.hidden_size),
        vocab_(model.vocab_size),
        std_(model.initial_std),
        mup_(model.mup),
        width_(mup_.width(hidden_)) {}

  void enter(Place place, std::string prefix, int64_t layer = kNoLayer) {
    place_ = place;
    layer_ = layer;
    expert_ = kNoExpert;
    prefix_ = std::move(prefix);
  }

  // What is added belongs to this expert until the next one.
  void enter_expert(int64_t expert) { expert_ = expert; }

  ParameterRow& add(
      const std::string& name,
      std::vector<int64_t> shape,
      const TensorCut& cut) {
    ParameterRow row;
    row.name = prefix_ + name;
    row.shape = std::move(shape);
    row.cut = cut;
    row.initial_std = std_;
    row.place = place_;
    row.layer = layer_;
    row.expert = expert_;
    rows_.push_back(std::move(row));
    return rows_.back();
  }

  // mup's factor of logits, whose inputs are as many as the model is wide.
  double logit_factor() const { return 1 / width_; }
  // The same of attention's scores.
  double score_factor(int64_t head_dim) const {
    return mup_.score_factor(head_dim);
  }

  // RMSNorm's weight.
  ParameterRow&
  norm(const NormDescription& norm, int64_t size, const TensorCut& cut) {
    ParameterRow& row = add(norm.name + ".weight", {size}, cut);
    row.initialization = norm.scale == NormScale::kWeight
                             ? Initialization::kOnes
                             : Initialization::kZeros;
    row.initial_std = 0;
    row.decays = false;
    row.role = ParameterRole::kNorm;
    return row;
  }
  ParameterRow& norm(const NormDescription& norm_of_hidden) {
    return norm(norm_of_hidden, hidden_, {});
  }
  // Scales the values of a norm's weight, which are factors themselves.
  static void scale_norm(ParameterRow& row, double factor) {
    if (factor == 1)
      return;
    row.mup.values = factor;
    row.initialization = Initialization::kConstant;
    row.initial_value = factor;
  }

  // A linear whose outputs are cut: weight [out, C], bias [out].
  struct Linear {
    std::string name;
    int64_t width;  // of the side that is cut
    TensorCut cut;
    bool has_bias = false;
    std::string group = {};
    double factor = 1;  // mup's, of its output
    // An expert's: see ParameterRow.
    std::string stack = {};
    int64_t stack_row = 0;
  };
  void column_parallel(const Linear& linear) {
    const auto group = [&](ParameterRow& row, const char* kind) {
      row.group = prefix_ + linear.group + kind;
      stack(row, linear);
    };
    TensorCut cut = linear.cut;
    cut.dim = 0;
    const std::string& name = linear.name;
    group(matrix(name, {linear.width, hidden_}, cut, linear.factor), ".weight");
    if (!linear.has_bias)
      return;
    ParameterRow& row = bias(name, linear.width, cut);
    row.mup.values = linear.factor;
    group(row, ".bias");
  }
  // A linear whose inputs are cut: weight [C, in], bias [C].
  void row_parallel(const Linear& linear) {
    TensorCut cut = linear.cut;
    cut.dim = 1;
    const std::string& name = linear.name;
    stack(matrix(name, {hidden_, linear.width}, cut), linear);
    if (linear.has_bias)
      bias(name, hidden_, {});
  }

  ParameterRow& vocabulary(const std::string& name, ParameterRole role) {
    ParameterRow& row =
        add(name,
            {vocab_, hidden_},
            {.unit = CutUnit::kVocabulary, .dim = 0, .count = vocab_});
    row.role = role;
    if (role == ParameterRole::kHead)
      scale(row, logit_factor());
    return row;
  }

  // A linear whose few outputs are logits of their own.
  void router(const std::string& name, int64_t outputs) {
    ParameterRow& row = add(name, {outputs, hidden_}, {});
    row.role = ParameterRole::kRouter;
    scale(row, logit_factor());
  }

  // What is added to the router's scores for the choice alone.
  void router_bias(const std::string& name, int64_t size) {
    ParameterRow& row = add(name, {size}, {});
    row.initialization = Initialization::kZeros;
    row.initial_std = 0;
    row.decays = false;
    row.trains = false;
    row.is_float32 = true;
    row.role = ParameterRole::kRouterBias;
  }

  std::vector<ParameterRow> take() { return std::move(rows_); }

 private:
  static void scale(ParameterRow& row, double factor) {
    row.mup.values *= factor;
    row.initial_std *= factor;
  }
  // The weight of a linear between hidden states.
  ParameterRow& matrix(
      const std::string& name,
      std::vector<int64_t> shape,
      const TensorCut& cut,
      double factor = 1) {
    ParameterRow& row = add(name + ".weight", std::move(shape), cut);
    row.mup.width = width_;
    row.initial_std /= std::sqrt(width_);
    scale(row, factor);
    return row;
  }
  void stack(ParameterRow& row, const Linear& linear) const {
    if (linear.stack.empty())
      return;
    row.stack = prefix_ + linear.stack;
    row.stack_row = linear.stack_row;
  }
  ParameterRow&
  bias(const std::string& name, int64_t size, const TensorCut& cut) {
    ParameterRow& row = add(name + ".bias", {size}, cut);
    row.initialization = Initialization::kZeros;
    row.initial_std = 0;
    row.decays = false;
    row.role = ParameterRole::kBias;
    return row;
  }

  int64_t hidden_;
  int64_t vocab_;
  double std_;
  MupOptions mup_;
  double width_;  // over the base's
  Place place_ = Place::kEmbedding;
  int64_t layer_ = kNoLayer;
  int64_t expert_ = kNoExpert;
  std::string prefix_;
  std::vector<ParameterRow> rows_;
};

void add_attention(const AttentionDescription& attention, Table& table) {
  const int64_t q_width = attention.num_heads * attention.head_dim;
  const int64_t kv_width = attention.num_key_value_heads * attention.head_dim;
  const TensorCut heads{.unit = CutUnit::kHeads, .count = attention.num_heads};
  const TensorCut kv_heads{
      .unit = CutUnit::kKeyValueHeads, .count = attention.num_key_value_heads};
  const bool bias = attention.qkv_bias;
  constexpr const char* kGroup = "self_attn.qkv_proj";
  // Behind a norm of its own q's size means nothing, and the norm's does.
  const double factor = table.score_factor(attention.head_dim);
  table.column_parallel(
      {.name = "self_attn.q_proj",
       .width = q_width,
       .cut = heads,
       .has_bias = bias,
       .group = kGroup,
       .factor = attention.q_norm ? 1 : factor});
  table.column_parallel({"self_attn.k_proj", kv_width, kv_heads, bias, kGroup});
  table.column_parallel({"self_attn.v_proj", kv_width, kv_heads, bias, kGroup});
  table.row_parallel({"self_attn.o_proj", q_width, heads, attention.o_bias});
  struct HeadNorm {
    const std::optional<NormDescription>& norm;
    TensorCut heads;
    double factor;
  };
  for (auto& [norm, cut, norm_factor] :
       {HeadNorm{attention.q_norm, heads, factor},
        HeadNorm{attention.k_norm, kv_heads, 1}}) {
    if (!norm)
      continue;
    NormDescription inside = *norm;
    inside.name = "self_attn." + norm->name;
    TensorCut over_all = cut;
    over_all.dim = 0;
    Table::scale_norm(
        attention.norms_all_heads
            ? table.norm(inside, cut.count * attention.head_dim, over_all)
            : table.norm(
                  inside, attention.head_dim, {.unit = CutUnit::kWholeOnHeads}),
        norm_factor);
  }
}

void add_mlp(const MlpDescription& mlp, const std::string& name, Table& table) {
  const TensorCut features{.unit = CutUnit::kFeatures, .count = mlp.width};
  const std::string group = name + ".gate_up_proj";
  table.column_parallel(
      {name + ".gate_proj", mlp.width, features, mlp.bias, group});
  table.column_parallel(
      {name + ".up_proj", mlp.width, features, mlp.bias, group});
  table.row_parallel({name + ".down_proj", mlp.width, features, mlp.bias});
}

void add_expert(
    const ExpertsDescription& experts,
    int64_t expert,
    int64_t hidden,
    Table& table) {
  const int64_t width = experts.expert.width;
  const TensorCut features{.unit = CutUnit::kFeatures, .count = width};
  const std::string all = experts.block + ".experts.";
  const std::string name = fmt::format("{}{}.", all, expert);
  table.enter_expert(expert);
  // Stacked, an expert's gate is above its up.
  Table::Linear linear{
      .name = name + experts.gate,
      .width = width,
      .cut = features,
      .group = name + "gate_up_proj",
      .stack = all + "gate_up_proj",
      .stack_row = expert * 2 * width};
  table.column_parallel(linear);
  linear.name = name + experts.up;
  linear.stack_row += width;
  table.column_parallel(linear);
  table.row_parallel(
      {.name = name + experts.down,
       .width = width,
       .cut = features,
       .stack = all + "down_proj",
       .stack_row = expert * hidden});
}

void add_experts(
    const ExpertsDescription& experts,
    int64_t hidden,
    Table& table) {
  table.router(experts.block + ".gate.weight", experts.count);
  if (experts.router.has_bias)
    table.router_bias(
        experts.block + ".gate.e_score_correction_bias", experts.count);
  for (int64_t expert = 0; expert < experts.count; ++expert)
    add_expert(experts, expert, hidden, table);
  table.enter_expert(kNoExpert);
  if (!experts.shared)
    return;
  const std::string shared = experts.block + "." + experts.shared->name;
  add_mlp(experts.shared->mlp, shared, table);
  if (experts.shared->has_gate)
    table.router(shared + "_gate.weight", 1);
}

}  // namespace

int64_t ParameterRow::numel() const {
  int64_t numel = 1;
  for (const int64_t size : shape)
    numel *= size;
  return numel;
}

std::vector<ParameterRow> list_parameters(const ModelDescription& model) {
  Table table(model);
  table.enter(Place::kEmbedding, "model.");
  ParameterRow& embedding =
      table.vocabulary("embed_tokens.weight", ParameterRole::kEmbedding);
  embedding.gradient_rows = GradientRows::kOfTheStepsTokens;
  if (model.has_tied_head)
    embedding.tied_head = kHeadName;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerDescription& layer = model.layers[i];
    table.enter(
        Place::kLayer,
        fmt::format("model.layers.{}.", i),
        static_cast<int64_t>(i));
    add_attention(layer.attention, table);
    if (layer.experts)
      add_experts(*layer.experts, model.hidden_size, table);
    else
      add_mlp(layer.mlp, "mlp", table);
    for (const NormDescription& norm : layer.norms())
      table.norm(norm);
  }
  table.enter(Place::kHead, "model.");
  ParameterRow& final_norm = table.norm(model.final_norm);
  if (model.has_tied_head) {
    Table::scale_norm(final_norm, table.logit_factor());
  } else {
    table.enter(Place::kHead, "");
    table.vocabulary(kHeadName, ParameterRole::kHead);
  }
  return model.adapter.is_used() ? with_adapters(table.take(), model.adapter)
                                 : table.take();
}

std::vector<ParameterRow> list_parameters(const DecoderConfig& config) {
  return list_parameters(describe_model(config));
}

std::vector<ParameterRow> list_parameters(
    const ModelDescription& model,
    const ModelPart& part) {
  std::vector<ParameterRow> rows = list_parameters(model);
  const auto is_elsewhere = [&](const ParameterRow& row) {
    if (row.expert != kNoExpert &&
        (row.expert < part.experts.begin || row.expert >= part.experts.end))
      return true;
    switch (row.place) {
      case Place::kEmbedding:
        return !part.is_first && !is_copy_for_head(row, part);
      case Place::kLayer:
        return row.layer < part.layers.begin || row.layer >= part.layers.end;
      case Place::kHead:
        break;
    }
    return !part.is_last;
  };
  rows.erase(
      std::remove_if(rows.begin(), rows.end(), is_elsewhere), rows.end());
  return rows;
}

int64_t parameter_count(const DecoderConfig& config) {
  int64_t count = 0;
  for (const ParameterRow& row : list_parameters(config)) {
    if (row.role != ParameterRole::kRouterBias)
      count += row.numel();
  }
  return count;
}

bool is_copy_for_head(const ParameterRow& row, const ModelPart& part) {
  return !row.tied_head.empty() && part.is_last && !part.is_first;
}

bool is_row_sparse(const ParameterRow& row, const ModelPart& part) {
  const bool is_head_too = !row.tied_head.empty() && part.is_last;
  return row.gradient_rows == GradientRows::kOfTheStepsTokens && !is_head_too;
}

bool is_obsolete_buffer(std::string_view name) {
  constexpr std::string_view kRotaryFrequencies = ".rotary_emb.inv_freq";
  return name.size() > kRotaryFrequencies.size() &&
         name.ends_with(kRotaryFrequencies);
}

}  // namespace brigade
