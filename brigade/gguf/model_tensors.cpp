#include "brigade/gguf/model_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

// The names of modules, without ".weight" and ".bias".
constexpr std::array kModules = {
    NamePair("self_attn.q_proj", "attn_q"),
    NamePair("self_attn.k_proj", "attn_k"),
    NamePair("self_attn.v_proj", "attn_v"),
    NamePair("self_attn.o_proj", "attn_output"),
    NamePair("self_attn.q_norm", "attn_q_norm"),
    NamePair("self_attn.k_norm", "attn_k_norm"),
    NamePair("mlp.gate_proj", "ffn_gate"),
    NamePair("mlp.up_proj", "ffn_up"),
    NamePair("mlp.down_proj", "ffn_down"),
    NamePair("mlp.gate", "ffn_gate_inp"),
    NamePair("block_sparse_moe.gate", "ffn_gate_inp"),
    NamePair("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    NamePair("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    NamePair("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    NamePair("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    NamePair("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    NamePair("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    NamePair("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    NamePair("input_layernorm", "attn_norm"),
    NamePair("pre_feedforward_layernorm", "ffn_norm"),
    NamePair("post_feedforward_layernorm", "post_ffw_norm"),
};

// The names of an expert's linears.
constexpr std::array kExpertLinears = {
    NamePair("gate_proj", "ffn_gate_exps"),
    NamePair("up_proj", "ffn_up_exps"),
    NamePair("down_proj", "ffn_down_exps"),
    NamePair("w1", "ffn_gate_exps"),
    NamePair("w3", "ffn_up_exps"),
    NamePair("w2", "ffn_down_exps"),
};

template <size_t size>
std::string_view other_name(
    const std::array<NamePair, size>& names,
    std::string_view name) {
  const auto* const found =
      std::find_if(names.begin(), names.end(), [&](const auto& pair) {
        return pair.first == name;
      });
  BRIGADE_ASSERT(found != names.end(), "{} is no module", name);
  return found->second;
}

std::string_view module_in_gguf(
    std::string_view module,
    const ParameterRow& row,
    const DecoderConfig& config) {
  if (row.expert != kNoExpert)
    return other_name(kExpertLinears, module.substr(module.rfind('.') + 1));
  // Gemma's is not the norm before the MLP; GLM's is, and has the same name.
  if (module == "post_attention_layernorm") {
    return is_gemma(config.architecture) ||
                   config.architecture == Architecture::kGlm4Moe
               ? "post_attention_norm"
               : "ffn_norm";
  }
  return other_name(kModules, module);
}

std::string name_in_gguf(const ParameterRow& row, const DecoderConfig& config) {
  if (row.place == Place::kEmbedding)
    return "token_embd.weight";
  const std::string_view name = row.name;
  const size_t dot = name.rfind('.');
  if (row.place == Place::kHead) {
    return row.cut.unit == CutUnit::kVocabulary ? "output.weight"
                                                : "output_norm.weight";
  }
  if (row.role == ParameterRole::kRouterBias)
    return fmt::format("blk.{}.exp_probs_b.bias", row.layer);
  const std::string prefix = fmt::format("model.layers.{}.", row.layer);
  BRIGADE_ASSERT(name.starts_with(prefix), "{} is in no layer", name);
  const std::string_view module =
      name.substr(prefix.size(), dot - prefix.size());
  return fmt::format(
      "blk.{}.{}{}",
      row.layer,
      module_in_gguf(module, row, config),
      name.substr(dot));
}

// Calls move(row here, row in GGUF) for all rows.
template <typename Move>
void for_each_rotated_row(int64_t rows, int64_t heads, const Move& move) {
  const int64_t head_dim = rows / heads;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      for (int64_t j = 0; j < 2; ++j)
        move(
            head * head_dim + j * head_dim / 2 + i,
            head * head_dim + 2 * i + j);
    }
  }
}

enum class Direction { kToGguf, kFromGguf };

void reorder(
    const TensorForm& form,
    int64_t rows,
    Direction direction,
    std::vector<float>& values) {
  const std::vector<float> before = values;
  const auto width = static_cast<int64_t>(values.size()) / rows;
  for_each_rotated_row(
      rows, form.rotated_heads, [&](int64_t here, int64_t there) {
        const bool goes_out = direction == Direction::kToGguf;
        const int64_t from = goes_out ? here : there;
        const int64_t to = goes_out ? there : here;
        std::copy_n(
            before.begin() + from * width, width, values.begin() + to * width);
      });
}

}  // namespace

TensorForm tensor_form(const ParameterRow& row, const DecoderConfig& config) {
  TensorForm form{
      .name = name_in_gguf(row, config),
      .shape = {row.shape.begin(), row.shape.end()}};
  if (row.expert != kNoExpert) {
    form.expert = row.expert;
    form.shape.insert(
        form.shape.begin(), static_cast<uint64_t>(config.experts->num_experts));
  } else if (row.role == ParameterRole::kRouter && row.shape[0] == 1) {
    form.shape.erase(form.shape.begin());  // llama.cpp has it as a vector
  }
  const bool is_llama = config.architecture == Architecture::kLlama ||
                        config.architecture == Architecture::kMistral ||
                        config.architecture == Architecture::kMixtral;
  if (is_llama && row.name.find(".q_proj.") != std::string::npos)
    form.rotated_heads = config.num_attention_heads;
  if (is_llama && row.name.find(".k_proj.") != std::string::npos)
    form.rotated_heads = config.num_key_value_heads;
  form.has_one_added =
      is_gemma(config.architecture) && row.name.ends_with("norm.weight");
  return form;
}

void to_gguf(
    const TensorForm& form,
    const std::vector<int64_t>& shape,
    std::vector<float>& values) {
  if (form.rotated_heads > 0)
    reorder(form, shape[0], Direction::kToGguf, values);
  if (form.has_one_added)
    for (float& value : values)
      value += 1.0F;
}

void from_gguf(
    const TensorForm& form,
    const std::vector<int64_t>& shape,
    std::vector<float>& values) {
  if (form.rotated_heads > 0)
    reorder(form, shape[0], Direction::kFromGguf, values);
  if (form.has_one_added)
    for (float& value : values)
      value -= 1.0F;
}

}  // namespace brigade
