#include "brigade/gguf/tokenizer_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/gguf/pre_tokenizer_name.h"
#include "brigade/gguf/sentencepiece_tokens.h"
#include "brigade/gguf/token_list.h"
#include "brigade/gguf/tokenizer_config.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/token_model.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/tokenizer_json.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kByteLevelModel = "gpt2";
constexpr const char* kSentencePieceModel = "llama";

[[noreturn]] void refuse_byte_level(const std::string& what) {
  throw ConfigError("[gguf] the tokenizer has no equal in llama.cpp: " + what);
}

void add_text(
    std::vector<GgufEntry>& entries,
    const std::string& key,
    std::string text) {
  entries.push_back({key, std::move(text)});
}

void add_id(
    std::vector<GgufEntry>& entries,
    const char* which,
    std::optional<int64_t> id) {
  if (id) {
    entries.push_back(
        {fmt::format("tokenizer.ggml.{}_token_id", which),
         static_cast<uint32_t>(*id)});
  }
}

// The bytes that a byte-level token stands for.
std::string spelled_bytes(const std::string& text) {
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const auto byte = ByteAlphabet::byte(utf8_code_point(text, at));
    if (!byte)
      return {};
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

// Whether the merges alone put every token together, so that it makes no
// difference whether whole words are looked up first.
bool merges_reach_all(json model) {
  model["ignore_merges"] = false;
  const std::string text = model.dump();
  const JsonDocument document(text, {"gguf", "tokenizer.json"});
  const auto merged = make_token_model(document.root());
  const auto scratch = merged->make_scratch();
  for (const auto& [token, id] : model.at("vocab").items()) {
    const std::string bytes = spelled_bytes(token);
    std::vector<int32_t> ids;
    if (!bytes.empty())
      merged->tokenize({.text = bytes, .byte_level = true}, *scratch, ids);
    if (!bytes.empty() && ids != std::vector{id.get<int32_t>()})
      return false;
  }
  return true;
}

PreTokenizerName choose_name(const json& tokenizer) {
  const json pre_tokenizer = tokenizer.value("pre_tokenizer", json());
  const auto names = pre_tokenizer_names(pre_tokenizer);
  if (names.empty()) {
    refuse_byte_level(fmt::format(
        "it knows no pre-tokenizer that cuts as {} does",
        pre_tokenizer.dump()));
  }
  const json& model = tokenizer.at("model");
  const WholeWords wanted = model.value("ignore_merges", false)
                                ? WholeWords::kIgnoreMerges
                                : WholeWords::kAreMerged;
  for (const PreTokenizerName& name : names) {
    if (name.whole_words == wanted)
      return name;
  }
  if (!merges_reach_all(model)) {
    refuse_byte_level(fmt::format(
        "with ignore_merges {}, its pre-tokenizer \"{}\" gives other tokens",
        wanted == WholeWords::kIgnoreMerges,
        names.front().name));
  }
  return names.front();
}

void require_plain_bpe(const json& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json value = model.value(key, json());
    if (value.is_string() && !value.get_ref<const std::string&>().empty())
      refuse_byte_level(fmt::format("{} {}", key, value.dump()));
  }
}

std::vector<std::string> merge_lines(const json& model) {
  std::vector<std::string> lines;
  for (const json& merge : model.at("merges")) {
    lines.push_back(
        merge.is_array() ? merge.at(0).get<std::string>() + " " +
                               merge.at(1).get<std::string>()
                         : merge.get<std::string>());
    if (std::count(lines.back().begin(), lines.back().end(), ' ') != 1)
      refuse_byte_level(
          fmt::format("the merge \"{}\" has several spaces", lines.back()));
  }
  return lines;
}

void add_byte_level(
    const json& tokenizer,
    TokenList& tokens,
    TokenizerEntries& result) {
  const json normalizer = tokenizer.value("normalizer", json());
  const bool is_nfc =
      normalizer.is_object() && normalizer.value("type", "") == "NFC";
  if (!normalizer.is_null() && !is_nfc)
    refuse_byte_level("the normalizer " + normalizer.dump());
  if (is_nfc)
    result.notes.emplace_back(
        "llama.cpp applies no NFC: texts in another form get other tokens");
  const PreTokenizerName pre = choose_name(tokenizer);
  if (!pre.difference.empty())
    result.notes.push_back(pre.difference);
  const json& model = tokenizer.at("model");
  for (const auto& [text, id] : model.at("vocab").items())
    tokens.set(id.get<int64_t>(), {text, 0, PieceType::kNormal});
  add_text(result.entries, "tokenizer.ggml.model", kByteLevelModel);
  add_text(result.entries, "tokenizer.ggml.pre", pre.name);
  result.entries.push_back({"tokenizer.ggml.merges", merge_lines(model)});
}

void add_added_tokens(
    const json& tokenizer,
    TokenList& tokens,
    std::vector<std::string>& notes) {
  const json unknown = tokenizer.at("model").value("unk_token", json());
  for (const json& added : tokenizer.value("added_tokens", json::array())) {
    const auto content = added.at("content").get<std::string>();
    const auto id = added.at("id").get<int64_t>();
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      if (added.value(flag, false))
        refuse_byte_level(
            fmt::format("the added token \"{}\" has {}", content, flag));
    }
    if (!tokens.holds(id)) {
      notes.push_back(fmt::format(
          "the token \"{}\" is left out: its id {} is beyond the model's "
          "vocabulary",
          content,
          id));
      continue;
    }
    PieceType type = added.value("special", false) ? PieceType::kControl
                                                   : PieceType::kUserDefined;
    if (unknown == content)
      type = PieceType::kUnknown;
    tokens.set(
        id, {content, tokens.tokens()[static_cast<size_t>(id)].score, type});
  }
}

// Llama 2's tokenizer.json has its special tokens normalised, so that they are
// found behind a space alone.
void note_tokens_within_words(
    const json& tokenizer,
    const Tokenizer& engine,
    std::vector<std::string>& notes) {
  std::string names;
  for (const json& added : tokenizer.at("added_tokens")) {
    const auto content = added.at("content").get<std::string>();
    const auto ids = engine.encode("a" + content + "a");
    if (std::find(ids.begin(), ids.end(), added.at("id")) == ids.end())
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", content);
  }
  if (!names.empty())
    notes.push_back("llama.cpp finds these tokens within words too: " + names);
}

void add_sentencepiece(
    const SentencePieceTokens& kind,
    TokenList& tokens,
    TokenizerEntries& result) {
  if (!kind.difference.empty())
    result.notes.push_back(kind.difference);
  add_text(result.entries, "tokenizer.ggml.model", kSentencePieceModel);
  add_text(result.entries, "tokenizer.ggml.pre", "default");
  result.entries.push_back(
      {"tokenizer.ggml.add_space_prefix",
       kind.prefix == SpacePrefix::kBeforeText});
  tokens.add_scores_to(result.entries);
  for (size_t id = 0; id < tokens.tokens().size(); ++id) {
    if (tokens.tokens()[id].type == PieceType::kUnknown)
      add_id(result.entries, "unknown", id);
  }
}

// Also those that the files beside it add.
std::vector<AddedToken> all_added_tokens(const Tokenizer& engine) {
  const auto* own = dynamic_cast<const HuggingFaceTokenizer*>(&engine);
  return own == nullptr ? std::vector<AddedToken>() : own->added_tokens();
}

void add_json(
    const fs::path& path,
    const Tokenizer& engine,
    TokenList& tokens,
    TokenizerEntries& result) {
  json tokenizer = json::parse(read_text_file(path));
  tokenizer["added_tokens"] = json::array();
  for (const AddedToken& token : all_added_tokens(engine))
    tokenizer["added_tokens"].push_back(added_token_json(token));
  const json& model = tokenizer.at("model");
  const std::string type =
      model.value("type", model.contains("merges") ? "BPE" : "");
  if (type != "BPE")
    refuse_byte_level(
        fmt::format("the model \"{}\"; only BPE is written", type));
  require_plain_bpe(model);
  if (model.value("byte_fallback", false)) {
    const auto kind = add_sentencepiece_json(tokenizer, tokens);
    add_added_tokens(tokenizer, tokens, result.notes);
    note_tokens_within_words(tokenizer, engine, result.notes);
    add_sentencepiece(kind, tokens, result);
  } else {
    add_byte_level(tokenizer, tokens, result);
    add_added_tokens(tokenizer, tokens, result.notes);
  }
}

// Bytes are a byte-level BPE that merges nothing, whatever its words.
void add_bytes(
    const Tokenizer& tokenizer,
    TokenList& tokens,
    TokenizerEntries& result) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id < 256) {
      const char byte = static_cast<char>(id);
      tokens.set(id, {ByteAlphabet::encode({&byte, 1}), 0, PieceType::kNormal});
    } else if (tokens.holds(id)) {
      tokens.set(id, {*tokenizer.token_text(id), 0, PieceType::kControl});
    }
  }
  add_text(result.entries, "tokenizer.ggml.model", kByteLevelModel);
  add_text(result.entries, "tokenizer.ggml.pre", "gpt-2");
  result.entries.push_back(
      {"tokenizer.ggml.merges", std::vector<std::string>()});
}

// What the template adds around a text: at most bos and eos.
void add_special_ids(
    const Tokenizer& tokenizer,
    const TokenIds& model,
    const TokenList& tokens,
    std::vector<GgufEntry>& entries) {
  const auto bare = tokenizer.encode("a");
  const auto around =
      tokenizer.encode("a", {.special_tokens = SpecialTokens::kTemplate});
  const auto middle =
      std::search(around.begin(), around.end(), bare.begin(), bare.end());
  const auto before = middle - around.begin();
  const auto after =
      around.end() - middle - static_cast<ptrdiff_t>(bare.size());
  if (middle == around.end() || before > 1 || after > 1)
    refuse_byte_level("its template adds more than a token before and after");
  std::optional<int64_t> bos = model.bos;
  if (tokenizer.bos_id())
    bos = *tokenizer.bos_id();
  if (before == 1)
    bos = around.front();
  std::optional<int64_t> eos;
  if (!model.eos.empty())
    eos = model.eos.front();
  if (tokenizer.eos_id())
    eos = *tokenizer.eos_id();
  if (after == 1)
    eos = around.back();
  const auto put = [&](const char* which, std::optional<int64_t> id) {
    if (id && tokens.holds(*id))
      add_id(entries, which, id);
  };
  put("bos", bos);
  put("eos", eos);
  const auto other =
      std::find_if(model.eos.begin(), model.eos.end(), [&](int64_t id) {
        return id != eos;
      });
  if (other != model.eos.end())
    put("eot", *other);
  entries.push_back({"tokenizer.ggml.add_bos_token", before == 1});
  entries.push_back({"tokenizer.ggml.add_eos_token", after == 1});
}

}  // namespace

TokenizerEntries tokenizer_entries(
    const std::string& spec,
    const TokenIds& model) {
  TokenizerEntries result;
  if (spec.empty()) {
    add_text(result.entries, "tokenizer.ggml.model", "none");
    return result;
  }
  const auto tokenizer = load_tokenizer(spec);
  TokenList tokens(model.vocab_size);
  fs::path folder;
  if (spec == "bytes") {
    add_bytes(*tokenizer, tokens, result);
  } else {
    const fs::path file = tokenizer_file(spec);
    if (file.extension() == ".model") {
      const auto kind =
          add_sentencepiece_model(file, all_added_tokens(*tokenizer), tokens);
      add_sentencepiece(kind, tokens, result);
    } else {
      add_json(file, *tokenizer, tokens, result);
    }
    folder = file.parent_path();
    add_chat_templates(folder, result.entries);
  }
  tokens.add_to(result.entries);
  add_special_ids(*tokenizer, model, tokens, result.entries);
  if (!folder.empty())
    add_named_tokens(folder, *tokenizer, tokens, result.entries);
  return result;
}

}  // namespace brigade
