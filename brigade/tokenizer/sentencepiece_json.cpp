#include "brigade/tokenizer/sentencepiece_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "brigade/base/parse_number.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/tokens_beside.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Model = SentencePieceModel;
using Type = Model::PieceType;

constexpr const char* kSpacePiece = "\u2581";

bool is_spelled_symbol(Type type) {
  return type == Type::kControl || type == Type::kUnknown;
}

// One way to make a piece of two others.
struct PieceMerge {
  float score = 0;
  size_t left_length = 0;  // characters
  std::string_view left;
  std::string_view right;
};

// By descending scores of the merged pieces, and the longest left parts first:
// as transformers' generate_merges(). So where pieces have one score, as Llama
// 2's runs of spaces do, a run is put together from the left, as the library
// does it.
json merges_of(const Model& model) {
  std::unordered_set<std::string_view> pieces;
  for (const Model::Piece& piece : model.pieces)
    pieces.insert(piece.text);
  std::vector<PieceMerge> merges;
  for (const Model::Piece& piece : model.pieces) {
    const std::string_view text = piece.text;
    if (piece.type != Type::kNormal)
      continue;
    size_t length = 1;
    for (size_t cut = utf8_length(text[0]); cut < text.size();
         cut += utf8_length(text[cut]), ++length) {
      const PieceMerge merge{
          piece.score, length, text.substr(0, cut), text.substr(cut)};
      if (pieces.contains(merge.left) && pieces.contains(merge.right))
        merges.push_back(merge);
    }
  }
  std::stable_sort(
      merges.begin(),
      merges.end(),
      [](const PieceMerge& a, const PieceMerge& b) {
        return a.score != b.score ? a.score > b.score
                                  : a.left_length > b.left_length;
      });
  json list = json::array();
  for (const PieceMerge& merge : merges)
    list.push_back({merge.left, merge.right});
  return list;
}

json added_tokens_of(const Model& model, const FilesBeside& beside) {
  std::map<int32_t, AddedToken> tokens;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (is_spelled_symbol(model.pieces[i].type))
      tokens[id] = {
          .id = id,
          .content = model.pieces[i].text,
          .normalized = false,
          .special = true};
  }
  for (const AddedToken& token : beside.tokens)
    tokens[token.id] = token;
  json list = json::array();
  for (const auto& [id, token] : tokens)
    list.push_back(added_token_json(token));
  return list;
}

std::optional<int64_t>
id_of(const std::string& name, const Model& model, const FilesBeside& beside) {
  for (const AddedToken& token : beside.tokens) {
    if (token.content == name)
      return token.id;
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].text == name)
      return static_cast<int64_t>(id);
  }
  return std::nullopt;
}

json template_of(const Model& model, const FilesBeside& beside) {
  json single = json::array();
  json pair = json::array();
  json specials = json::object();
  const auto add = [&](const std::optional<std::string>& name, int type) {
    const auto id = name ? id_of(*name, model, beside) : std::nullopt;
    if (!id)
      return;
    specials[*name] = {
        {"id", *name},
        {"ids", json::array({*id})},
        {"tokens", json::array({*name})}};
    const json special = {{"SpecialToken", {{"id", *name}, {"type_id", type}}}};
    if (type == 0)
      single.push_back(special);
    pair.push_back(special);
  };
  const auto add_sequence = [&](const char* id, int type) {
    const json sequence = {{"Sequence", {{"id", id}, {"type_id", type}}}};
    if (type == 0)
      single.push_back(sequence);
    pair.push_back(sequence);
  };
  for (const int type : {0, 1}) {
    add(beside.begin, type);
    add_sequence(type == 0 ? "A" : "B", type);
    add(beside.end, type);
  }
  return {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", pair},
      {"special_tokens", specials}};
}

json replace(const char* from, const char* to) {
  return {
      {"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

AddedToken read_token(const JsonNode& node, int32_t id) {
  AddedToken token{.id = id, .content = node.at("content").string()};
  token.single_word = node.boolean_at("single_word", false);
  token.lstrip = node.boolean_at("lstrip", false);
  token.rstrip = node.boolean_at("rstrip", false);
  token.normalized = node.boolean_at("normalized", false);
  token.special = node.boolean_at("special", false);
  return token;
}

void read_config_beside(
    const fs::path& path,
    std::map<int32_t, AddedToken>& tokens,
    FilesBeside& beside) {
  const std::string text = read_text_file(path);
  const JsonDocument document(text, {"tokenizer", path.string()});
  const JsonNode config = document.root();
  const SpecialNames names = special_names_beside(path);
  if (!config.boolean_at("add_bos_token", true))
    beside.begin.reset();
  else if (names.bos)
    beside.begin = names.bos;
  if (config.boolean_at("add_eos_token", false))
    beside.end = names.eos.value_or("</s>");
  const auto list = config.find("added_tokens_decoder");
  if (!list)
    return;
  for (const auto& [name, value] : list->value().items()) {
    const auto id = parse_number<int32_t>(name).value_or(-1);
    if (id < 0)
      list->fail(fmt::format("\"{}\" is not a token's id", name));
    tokens[id] = read_token(list->at(name), id);
  }
}

}  // namespace

json added_token_json(const AddedToken& token) {
  return {
      {"id", token.id},
      {"content", token.content},
      {"single_word", token.single_word},
      {"lstrip", token.lstrip},
      {"rstrip", token.rstrip},
      {"normalized", token.normalized},
      {"special", token.special}};
}

std::optional<std::string> reason_not_to_convert(const Model& model) {
  if (model.algorithm != Model::Algorithm::kBpe)
    return "it is not of the kind BPE";
  if (!model.charsmap.empty() || model.removes_extra_white_space ||
      !model.escapes_white_space || model.has_denormalizer)
    return "it normalises the text";
  if (model.white_space_is_suffix)
    return "white space ends its words";
  size_t bytes = 0;
  for (const Model::Piece& piece : model.pieces) {
    if (piece.type == Type::kUserDefined || piece.type == Type::kUnused)
      return fmt::format(
          "\"{}\" is a symbol of the user's or unused", piece.text);
    if (piece.text.empty() ||
        valid_utf8_prefix(piece.text) != piece.text.size())
      return "a piece of it is no text";
    bytes += piece.type == Type::kByte ? 1 : 0;
  }
  if (!model.byte_fallback || bytes != 256)
    return "it does not spell unknown characters in bytes";
  return std::nullopt;
}

FilesBeside read_files_beside(const fs::path& folder) {
  FilesBeside beside;
  std::map<int32_t, AddedToken> tokens;
  const fs::path added = folder / "added_tokens.json";
  if (has_file(added)) {
    const std::string text = read_text_file(added);
    const JsonDocument document(text, {"tokenizer", added.string()});
    const JsonNode root = document.root();
    root.require_object();
    for (const auto& [content, value] : root.value().items()) {
      const auto id =
          static_cast<int32_t>(root.at(content).integer(0, INT32_MAX - 1));
      tokens[id] = {.id = id, .content = content, .normalized = false};
    }
  }
  const fs::path config = folder / "tokenizer_config.json";
  if (has_file(config))
    read_config_beside(config, tokens, beside);
  for (auto& [id, token] : tokens)
    beside.tokens.push_back(std::move(token));
  return beside;
}

bool adds_tokens(const FilesBeside& beside, const Model& model) {
  return std::any_of(
      beside.tokens.begin(), beside.tokens.end(), [&](const AddedToken& token) {
        const auto id = static_cast<size_t>(token.id);
        return id >= model.pieces.size() ||
               model.pieces[id].text != token.content;
      });
}

std::optional<std::string> convert_sentencepiece(const fs::path& path) {
  const MappedFile file(path);
  const Model model = parse_sentencepiece_model(file.text(), path.string());
  if (reason_not_to_convert(model))
    return std::nullopt;
  const FilesBeside beside = read_files_beside(path.parent_path());
  return sentencepiece_json(model, beside).dump(2) + "\n";
}

json sentencepiece_json(const Model& model, const FilesBeside& beside) {
  json vocabulary = json::object();
  for (size_t id = 0; id < model.pieces.size(); ++id)
    vocabulary[model.pieces[id].text] = id;
  json normalizers = json::array();
  if (model.adds_dummy_prefix)
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpacePiece}});
  normalizers.push_back(replace(" ", kSpacePiece));
  json decoders = {
      replace(kSpacePiece, " "),
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (model.adds_dummy_prefix)
    decoders.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const auto unknown = std::find_if(
      model.pieces.begin(), model.pieces.end(), [](const Model::Piece& piece) {
        return piece.type == Type::kUnknown;
      });
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens_of(model, beside)},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", template_of(model, beside)},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token",
         unknown == model.pieces.end() ? json() : json(unknown->text)},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", merges_of(model)}}}};
}

}  // namespace brigade
