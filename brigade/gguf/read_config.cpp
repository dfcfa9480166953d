// The config of a GGUF file: model_entries.h, the way back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/gguf/blocks.h"
#include "brigade/gguf/model_entries.h"
#include "brigade/model_spec/rotary_frequencies.h"

namespace brigade {
namespace {

// Of the shortest decimal form: 1e-06, not 9.99999997e-07.
double shortest(float value) {
  return std::stod(fmt::format("{}", value));
}

// The scaling with these divisors, one of each pair and its frequency, if there
// is one. With x = frequency / 2 pi it divides by d where
//
//   (1 / d - 1 / factor) / (1 - 1 / factor) = (x - low) / (high - low),
//
// low and high being low_freq_factor and high_freq_factor by the original
// length: two pairs tell these, which are rounded to as many digits. The length
// itself stays open: that which makes low_freq_factor 1, or close to it.
RopeScaling llama3_scaling(
    const std::vector<float>& divisors,
    double factor,
    const std::vector<double>& frequencies,
    int digits) {
  struct Pair {
    double turns;  // x
    double kept;   // the left side
  };
  std::vector<Pair> between;
  double slowest_whole = std::numeric_limits<double>::infinity();
  double fastest_divided = 0;  // by factor
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double kept =
        (1 / double{divisors[i]} - 1 / factor) / (1 - 1 / factor);
    const double turns = frequencies[i] / (2 * std::numbers::pi);
    if (divisors[i] == 1)
      slowest_whole = std::min(slowest_whole, turns);
    else if (divisors[i] == static_cast<float>(factor))
      fastest_divided = std::max(fastest_divided, turns);
    else
      between.push_back({turns, kept});
  }
  double low = fastest_divided;
  double high = std::min(slowest_whole, 2 * low);
  if (between.size() == 1) {
    // A quarter of high, as in the published models, where the others let it.
    const auto [turns, kept] = between[0];
    low = std::max(
        {turns / (1 + 3 * kept),
         fastest_divided,
         (turns - kept * slowest_whole) / (1 - kept)});
    high = low + (turns - low) / kept;
  } else if (between.size() > 1) {
    const Pair& fast = between.front();
    const Pair& slow = between.back();
    const double width = (fast.turns - slow.turns) / (fast.kept - slow.kept);
    low = slow.turns - slow.kept * width;
    high = low + width;
  }
  const double original = std::round(1 / low);
  const auto factor_of = [&](double turns) {
    return std::stod(fmt::format("{:.{}g}", turns * original, digits));
  };
  if (!(original >= 1 && original < 1e15))
    return {.original_max_position_embeddings = 0};
  return {
      .type = RopeType::kLlama3,
      .factor = factor,
      .original_max_position_embeddings = static_cast<int64_t>(original),
      .low_freq_factor = factor_of(low),
      .high_freq_factor = factor_of(high)};
}

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file)
      : file_(file),
        name_(file.value<std::string>("general.architecture")),
        prefix_(name_ + ".") {}

  DecoderConfig read() {
    check_type();
    read_architecture();
    read_sizes();
    read_biases();
    read_experts();
    if (is_gemma(config_.architecture))
      read_gemma();
    read_scaling();
    read_divisors();
    read_ids();
    check();
    return config_;
  }

 private:
  const GgufFile& file_;
  const std::string name_;
  const std::string prefix_;
  DecoderConfig config_;

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(
        fmt::format("[gguf] '{}': {}", file_.path().string(), problem));
  }

  int64_t integer(const std::string& key) const {
    return file_.value<uint32_t>(prefix_ + key);
  }
  std::optional<int64_t> find_integer(const std::string& key) const {
    const auto* value = file_.find_value<uint32_t>(prefix_ + key);
    return value ? std::optional<int64_t>(*value) : std::nullopt;
  }
  std::optional<double> find_number(const std::string& key) const {
    const auto* value = file_.find_value<float>(prefix_ + key);
    return value ? std::optional(shortest(*value)) : std::nullopt;
  }
  bool holds(std::string_view tensor) const {
    return file_.find(tensor) != nullptr;
  }

  void check_type() const {
    const auto* type = file_.find_value<std::string>("general.type");
    if (type != nullptr && *type != "model")
      fail(fmt::format("it is of the type \"{}\", no model", *type));
    const auto* parts = file_.find_value<uint32_t>("split.count");
    if (parts != nullptr && *parts > 1)
      fail(fmt::format(
          "it is one of {} files with the model; join them with "
          "llama-gguf-split --merge",
          *parts));
  }

  void read_architecture() {
    // Of those that are one to llama.cpp, the first: Llama.
    for (const ArchitectureName& each : kArchitectures) {
      if (name_ == gguf_architecture(each.architecture)) {
        config_.architecture = each.architecture;
        return;
      }
    }
    fail(fmt::format(
        "the architecture \"{}\" is not read; llama, qwen2, qwen3, gemma2, "
        "gemma3, qwen2moe, qwen3moe, olmoe, dots1 and glm4moe are",
        name_));
  }

  void read_experts() {
    const int64_t count = find_integer("expert_count").value_or(0);
    Architecture& architecture = config_.architecture;
    if (count > 0 && architecture == Architecture::kLlama)
      architecture = Architecture::kMixtral;
    const bool can_have = has_experts(architecture);
    if (count > 0 && !can_have)
      fail(fmt::format(
          "'{}expert_count' is {}, but {} is read without experts alone",
          prefix_,
          count,
          name_));
    if (count == 0 && can_have)
      fail(fmt::format(
          "'{}expert_count' is missing or 0, but a {} model has experts",
          prefix_,
          name_));
    if (count == 0)
      return;
    ExpertsConfig experts;
    experts.num_experts = count;
    experts.num_experts_per_tok = integer("expert_used_count");
    // As llama.cpp takes them where they are absent.
    const bool is_qwen = architecture == Architecture::kQwen2Moe ||
                         architecture == Architecture::kQwen3Moe;
    experts.width =
        find_integer("expert_feed_forward_length")
            .value_or(
                config_.intermediate_size /
                (is_qwen ? std::max<int64_t>(experts.num_experts_per_tok, 1)
                         : 1));
    if (architecture == Architecture::kOlmoe)
      experts.router_aux_loss_coef = 0.01;  // transformers' default
    experts.norm_topk_prob = gguf_normalises(architecture);
    if (architecture == Architecture::kQwen2Moe)
      experts.shared_width = find_integer("expert_shared_feed_forward_length")
                                 .value_or(config_.intermediate_size);
    if (has_deepseek_router(architecture))
      read_deepseek_router(experts);
    config_.experts = experts;
  }

  void read_deepseek_router(ExpertsConfig& experts) const {
    if (const auto gating = find_integer("expert_gating_func");
        gating.value_or(kGgufSigmoid) != kGgufSigmoid)
      fail(fmt::format(
          "'{}expert_gating_func' is {}; only {}, sigmoid, is read",
          prefix_,
          *gating,
          kGgufSigmoid));
    experts.first_k_dense_replace =
        find_integer("leading_dense_block_count").value_or(0);
    // Sizes that are too large are named by check().
    constexpr int64_t kMost = int64_t{1} << 31;
    experts.width = std::clamp<int64_t>(experts.width, 1, kMost);
    experts.shared_width =
        std::min(kMost, find_integer("expert_shared_count").value_or(0)) *
        experts.width;
    experts.routed_scaling_factor =
        find_number("expert_weights_scale").value_or(1.0);
    const auto* normalises =
        file_.find_value<bool>(prefix_ + "expert_weights_norm");
    experts.norm_topk_prob = normalises != nullptr && *normalises;
    experts.n_group = find_integer("expert_group_count").value_or(1);
    experts.topk_group = find_integer("expert_group_used_count").value_or(1);
  }

  void read_sizes() {
    const GgufTensor* embedding = file_.find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
      fail("there is no matrix 'token_embd.weight'");
    config_.vocab_size = static_cast<int64_t>(embedding->shape[0]);
    config_.hidden_size = integer("embedding_length");
    config_.intermediate_size = integer("feed_forward_length");
    // Those behind them predict further tokens.
    config_.num_hidden_layers =
        integer("block_count") -
        find_integer("nextn_predict_layers").value_or(0);
    config_.num_attention_heads = integer("attention.head_count");
    config_.num_key_value_heads = find_integer("attention.head_count_kv")
                                      .value_or(config_.num_attention_heads);
    if (config_.num_attention_heads < 1)
      fail("the model has no attention heads");
    config_.head_dim =
        find_integer("attention.key_length")
            .value_or(config_.hidden_size / config_.num_attention_heads);
    require_head_dim("attention.value_length");
    if (config_.architecture != Architecture::kGlm4Moe)
      require_head_dim("rope.dimension_count");
    else if (const auto rotated = find_integer("rope.dimension_count");
             rotated && config_.head_dim > 0)
      config_.partial_rotary_factor =
          static_cast<double>(*rotated) / static_cast<double>(config_.head_dim);
    config_.max_position_embeddings = integer("context_length");
    const auto eps = find_number("attention.layer_norm_rms_epsilon");
    if (!eps)
      fail(fmt::format(
          "there is no '{}attention.layer_norm_rms_epsilon'", prefix_));
    config_.rms_norm_eps = *eps;
    config_.rope_theta = find_number("rope.freq_base").value_or(10000.0);
    config_.tie_word_embeddings = !holds("output.weight");
  }

  void require_head_dim(const char* key) const {
    const int64_t length = find_integer(key).value_or(config_.head_dim);
    if (length != config_.head_dim) {
      fail(fmt::format(
          "'{}{}' is {}, expected the head's {}",
          prefix_,
          key,
          length,
          config_.head_dim));
    }
  }

  // Read from the first layer; check() decides where the architecture does.
  void read_biases() {
    config_.qkv_bias = holds("blk.0.attn_q.bias");
    config_.o_bias = holds("blk.0.attn_output.bias");
    config_.mlp_bias = holds("blk.0.ffn_gate.bias");
    config_.qk_norm = holds("blk.0.attn_q_norm.weight");
    if (config_.architecture == Architecture::kLlama &&
        config_.qkv_bias != config_.o_bias)
      fail("only some of q, k, v and output have biases, which is not read");
  }

  void read_gemma() {
    const bool is_gemma2 = config_.architecture == Architecture::kGemma2;
    config_.query_pre_attn_scalar = gemma_attention_scalar(config_);
    const int64_t usual = is_gemma2 ? 2 : 6;
    const auto window = find_integer("attention.sliding_window");
    // Gemma 3 without a window has no sliding layers.
    const int64_t period =
        window || is_gemma2
            ? find_integer("attention.sliding_window_pattern").value_or(usual)
            : 1;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const bool slides = period == 0 || layer % period < period - 1;
      config_.layer_types.push_back(
          slides ? LayerType::kSlidingAttention : LayerType::kFullAttention);
    }
    const bool any_slides = std::count(
        config_.layer_types.begin(),
        config_.layer_types.end(),
        LayerType::kSlidingAttention);
    if (any_slides)
      config_.sliding_window = window.value_or(4096);
    if (is_gemma2) {
      config_.attn_logit_softcapping =
          find_number("attn_logit_softcapping").value_or(50.0);
      config_.final_logit_softcapping =
          find_number("final_logit_softcapping").value_or(30.0);
    } else {
      config_.rope_local_base_freq =
          find_number("rope.freq_base_swa").value_or(10000.0);
    }
  }

  void read_scaling() {
    const auto* named =
        file_.find_value<std::string>(prefix_ + "rope.scaling.type");
    // As llama.cpp has it: the default, the key of old files, and 0 for none.
    const std::string type = named == nullptr ? "linear" : *named;
    RopeScaling scaling;
    scaling.factor =
        find_number("rope.scaling.factor")
            .value_or(find_number("rope.scale_linear").value_or(0.0));
    if (scaling.factor == 0)
      scaling.factor = 1;
    if (type == "none" || (type == "linear" && scaling.factor == 1))
      return;
    scaling.original_max_position_embeddings =
        find_integer("rope.scaling.original_context_length")
            .value_or(config_.max_position_embeddings);
    if (type == "linear") {
      scaling.type = RopeType::kLinear;
    } else if (type == "yarn") {
      scaling.type = RopeType::kYarn;
      scaling.beta_fast =
          find_number("rope.scaling.yarn_beta_fast").value_or(32.0);
      scaling.beta_slow =
          find_number("rope.scaling.yarn_beta_slow").value_or(1.0);
      if (const auto factor = find_number("rope.scaling.attn_factor"))
        scaling.attention_factor =
            *factor * usual_yarn_magnitude(scaling.factor);
    } else {
      fail(fmt::format("the rope scaling \"{}\" is not read", type));
    }
    config_.rope_scaling = scaling;
  }

  // llama3's scaling is stored as its effect alone: looked for among the
  // parameters of the published models, then made from it.
  void read_divisors() {
    const GgufTensor* stored = file_.find(kRopeDivisors);
    if (stored == nullptr)
      return;
    if (stored->type != GgufType::kF32 || stored->shape.size() != 1 ||
        static_cast<int64_t>(stored->shape[0]) != config_.head_dim / 2)
      fail(fmt::format("'{}' is no list of f32 per pair", kRopeDivisors));
    std::vector<float> divisors(stored->shape[0]);
    decode_gguf(stored->data, stored->type, divisors);
    const double factor =
        divisors.empty()
            ? 1.0
            : shortest(*std::max_element(divisors.begin(), divisors.end()));
    const int64_t context = config_.max_position_embeddings;
    const auto before =
        static_cast<int64_t>(static_cast<double>(context) / factor);
    const auto fits = [&](const RopeScaling& scaling) {
      config_.rope_scaling = scaling;
      return scaling.original_max_position_embeddings > 0 &&
             are_close(rope_divisors(config_), divisors);
    };
    for (const int64_t original : {int64_t{8192}, before, context}) {
      if (fits(
              {.type = RopeType::kLlama3,
               .factor = factor,
               .original_max_position_embeddings = original}))
        return;
    }
    const auto frequencies =
        rotary_frequencies({.theta = config_.rope_theta}, config_.head_dim, 1);
    for (const int digits : {6, 17}) {
      if (fits(llama3_scaling(divisors, factor, frequencies.values, digits)))
        return;
    }
    fail(fmt::format(
        "'{}' is of no parameters of llama3's rope scaling", kRopeDivisors));
  }

  static bool are_close(
      const std::vector<float>& a,
      const std::vector<float>& b) {
    return std::equal(
        a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
          return std::abs(x - y) <= 1e-5F * std::abs(y);
        });
  }

  void read_ids() {
    const std::string ids = "tokenizer.ggml.";
    if (const auto* bos = file_.find_value<uint32_t>(ids + "bos_token_id"))
      config_.bos_token_id = *bos;
    for (const char* which : {"eos_token_id", "eot_token_id"}) {
      if (const auto* eos = file_.find_value<uint32_t>(ids + which))
        config_.eos_token_ids.push_back(*eos);
    }
  }

  // The config as it is read again from the folder's config.json, which checks
  // the sizes.
  void check() {
    std::vector<std::string> problems;
    config_ = parse_decoder_config(
        to_hugging_face_json(config_, "float32"), "", problems);
    if (!problems.empty())
      fail(fmt::format(
          "the sizes make no model: {}", fmt::join(problems, "; ")));
  }
};

}  // namespace

DecoderConfig read_gguf_config(const GgufFile& file) {
  return ConfigReader(file).read();
}

}  // namespace brigade
