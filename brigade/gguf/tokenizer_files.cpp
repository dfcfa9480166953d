#include "brigade/gguf/tokenizer_files.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/gguf/pre_tokenizer_name.h"
#include "brigade/gguf/token_list.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/tokenizer_json.h"

namespace brigade {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

class TokenizerReader {
 public:
  explicit TokenizerReader(const GgufFile& file)
      : file_(file), model_(file.value<std::string>("tokenizer.ggml.model")) {}

  std::map<std::string, std::string> read() {
    if (model_ == "none" || model_ == "no_vocab")
      return {};
    read_tokens();
    json tokenizer;
    if (model_ == "gpt2") {
      tokenizer = byte_level();
    } else if (model_ == "llama") {
      tokenizer = sentencepiece();
    } else {
      fail(fmt::format(
          "the tokenizer \"{}\" is not read; \"gpt2\" and \"llama\" are",
          model_));
    }
    const std::string text = tokenizer.dump(2) + "\n";
    // Whether it is one: its errors name the place.
    const HuggingFaceTokenizer check(
        text, file_.path().string() + ", as tokenizer.json");
    return {
        {"tokenizer.json", text},
        {"tokenizer_config.json", config().dump(2) + "\n"}};
  }

 private:
  const GgufFile& file_;
  const std::string model_;
  std::vector<GgufToken> tokens_;

  static constexpr std::string_view kBegin = "bos_token_id";
  static constexpr std::string_view kEnd = "eos_token_id";

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(
        fmt::format("[gguf] '{}': {}", file_.path().string(), problem));
  }

  static std::string key(std::string_view name) {
    return fmt::format("tokenizer.ggml.{}", name);
  }

  void read_tokens() {
    const auto& texts = file_.value<Texts>(key("tokens"));
    const auto* types =
        file_.find_value<std::vector<int32_t>>(key("token_type"));
    const auto* scores = file_.find_value<std::vector<float>>(key("scores"));
    if ((types != nullptr && types->size() != texts.size()) ||
        (scores != nullptr && scores->size() != texts.size()))
      fail("its lists of tokens, types and scores are of different lengths");
    for (size_t id = 0; id < texts.size(); ++id) {
      GgufToken token{texts[id], 0, PieceType::kNormal};
      if (types != nullptr)
        token.type = static_cast<PieceType>((*types)[id]);
      if (scores != nullptr)
        token.score = (*scores)[id];
      tokens_.push_back(std::move(token));
    }
    // What fills up the embedding is no token.
    while (!tokens_.empty() && tokens_.back().type == PieceType::kUnused)
      tokens_.pop_back();
  }

  // A token's id; where the file does not say, as llama.cpp has it for a model
  // of SentencePiece.
  std::optional<uint32_t> id_of(std::string_view name) const {
    if (const auto* id = file_.find_value<uint32_t>(key(name)))
      return *id;
    if (model_ != "llama" || name == "padding_token_id")
      return std::nullopt;
    return name == kBegin ? 1U : name == kEnd ? 2U : 0U;
  }

  std::optional<std::string> text_of(std::string_view name) const {
    const auto id = id_of(name);
    if (!id || *id >= tokens_.size())
      return std::nullopt;
    return tokens_[*id].text;
  }

  // Whether tokenizer_config.json names it. What it names is special, which
  // would take an ordinary token that fills up batches out of texts.
  bool is_named(std::string_view name) const {
    if (!text_of(name) || name == kBegin || name == kEnd)
      return text_of(name).has_value();
    const PieceType type = tokens_[*id_of(name)].type;
    return type != PieceType::kNormal && type != PieceType::kByte;
  }

  // What is added around a text, where there is such a token.
  std::optional<std::string> added_text(
      std::string_view special,
      bool by_default) const {
    const auto* adds = file_.find_value<bool>(
        key(special == kBegin ? "add_bos_token" : "add_eos_token"));
    return (adds != nullptr ? *adds : by_default) ? text_of(special)
                                                  : std::nullopt;
  }

  std::vector<AddedToken> added_tokens() const {
    std::vector<AddedToken> added;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const PieceType type = tokens_[id].type;
      if (type != PieceType::kControl && type != PieceType::kUserDefined)
        continue;
      added.push_back(
          {.id = static_cast<int32_t>(id),
           .content = tokens_[id].text,
           .normalized = false,
           .special = type == PieceType::kControl});
    }
    return added;
  }

  json sentencepiece() const {
    for (const GgufToken& token : tokens_) {
      const auto type = static_cast<int32_t>(token.type);
      if (type < 1 || type > 6 || token.text.empty())
        fail(fmt::format("the token \"{}\" has the type {}", token.text, type));
    }
    SentencePieceModel model{.pieces = tokens_};
    const auto* prefix = file_.find_value<bool>(key("add_space_prefix"));
    model.adds_dummy_prefix = prefix == nullptr || *prefix;
    SentencePieceJsonOptions options{.tokens = added_tokens()};
    options.begin = added_text(kBegin, true);
    options.end = added_text(kEnd, false);
    return sentencepiece_json(model, options);
  }

  json byte_level() const {
    const auto& pre = file_.value<std::string>(key("pre"));
    const json pre_tokenizer = pre_tokenizer_named(pre);
    if (pre_tokenizer.is_null())
      fail(fmt::format("the pre-tokenizer \"{}\" is not known", pre));
    json vocabulary = json::object();
    json added = json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      // Added tokens too: only there may their ids lie in front of others.
      if (tokens_[id].type != PieceType::kUnused)
        vocabulary[tokens_[id].text] = id;
    }
    for (const AddedToken& token : added_tokens())
      added.push_back(added_token_json(token));
    return {
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer", pre_tokenizer},
        {"post_processor",
         text_template(begin_token_of(pre) == BeginToken::kAdded)},
        {"decoder",
         {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", whole_words_of(pre) == WholeWords::kIgnoreMerges},
          {"vocab", vocabulary},
          {"merges", file_.value<Texts>(key("merges"))}}}};
  }

  json text_template(bool begins_by_default) const {
    json single = json::array();
    json specials = json::object();
    const auto add = [&](std::string_view special, bool by_default) {
      const auto text = added_text(special, by_default);
      if (!text)
        return;
      specials[*text] = {
          {"id", *text},
          {"ids", json::array({*id_of(special)})},
          {"tokens", json::array({*text})}};
      single.push_back({{"SpecialToken", {{"id", *text}, {"type_id", 0}}}});
    };
    add(kBegin, begins_by_default);
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    add(kEnd, false);
    json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return {
        {"type", "TemplateProcessing"},
        {"single", single},
        {"pair", pair},
        {"special_tokens", specials}};
  }

  json config() const {
    json config = {
        {"tokenizer_class", "PreTrainedTokenizerFast"},
        {"clean_up_tokenization_spaces", false}};
    for (const SpecialToken& token : kSpecialTokens) {
      config[token.name] =
          is_named(token.key) ? json(*text_of(token.key)) : nullptr;
    }
    if (const auto* chat =
            file_.find_value<std::string>("tokenizer.chat_template"))
      config["chat_template"] = *chat;
    return config;
  }
};

}  // namespace

std::map<std::string, std::string> tokenizer_files(const GgufFile& file) {
  return TokenizerReader(file).read();
}

}  // namespace brigade
