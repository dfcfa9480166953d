#include "brigade/tokenizer/sentencepiece_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/tokenizer_json.h"

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

const Model::Piece* find_piece(const Model& model, const std::string& text) {
  const auto piece = std::find_if(
      model.pieces.begin(), model.pieces.end(), [&](const Model::Piece& each) {
        return each.text == text;
      });
  return piece == model.pieces.end() ? nullptr : &*piece;
}

json added_tokens_of(
    const Model& model,
    const SentencePieceJsonOptions& options) {
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
  for (const AddedToken& token : options.tokens)
    tokens[token.id] = token;
  json list = json::array();
  for (const auto& [id, token] : tokens)
    list.push_back(added_token_json(token));
  return list;
}

std::optional<int64_t> id_of(
    const std::string& name,
    const Model& model,
    const SentencePieceJsonOptions& options) {
  for (const AddedToken& token : options.tokens) {
    if (token.content == name)
      return token.id;
  }
  const Model::Piece* piece = find_piece(model, name);
  return piece == nullptr ? std::nullopt
                          : std::optional<int64_t>(piece - &model.pieces[0]);
}

json template_of(const Model& model, const SentencePieceJsonOptions& options) {
  json single = json::array();
  json pair = json::array();
  json specials = json::object();
  const auto add = [&](const std::optional<std::string>& name, int type) {
    const auto id = name ? id_of(*name, model, options) : std::nullopt;
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
    add(options.begin, type);
    add_sequence(type == 0 ? "A" : "B", type);
    add(options.end, type);
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

json normalizer_of(const Model& model) {
  json normalizers = json::array();
  if (model.adds_dummy_prefix)
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpacePiece}});
  normalizers.push_back(replace(" ", kSpacePiece));
  return {{"type", "Sequence"}, {"normalizers", normalizers}};
}

json metaspace_of(const Model& model, const std::string& prepend_scheme) {
  return {
      {"type", "Metaspace"},
      {"replacement", kSpacePiece},
      {"prepend_scheme", model.adds_dummy_prefix ? prepend_scheme : "never"},
      {"split", false}};
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

TokensBeside read_tokens_beside(const fs::path& path, const Model& model) {
  TokensBeside beside = read_tokens_beside(path);
  beside.gives_way = false;
  const auto name = [&](const std::string& piece) {
    const Model::Piece* own = find_piece(model, piece);
    return own != nullptr && own->type == Type::kControl ? piece : "";
  };
  if (!beside.names.bos)
    beside.names.bos = name(model.bos_piece);
  if (!beside.names.eos)
    beside.names.eos = name(model.eos_piece);
  return beside;
}

bool names_only_symbols(const TokensBeside& beside, const Model& model) {
  std::unordered_map<std::string_view, Type> types;
  for (const Model::Piece& piece : model.pieces)
    types.emplace(piece.text, piece.type);
  for (const auto* list : {&beside.listed, &beside.named, &beside.extra}) {
    for (const AddedToken& token : *list) {
      const auto piece = types.find(token.content);
      if (token.content.empty())
        continue;
      if (piece == types.end() || (!is_spelled_symbol(piece->second) &&
                                   piece->second != Type::kUserDefined))
        return false;
    }
  }
  return true;
}

std::optional<std::string> listed_new_token(
    const TokensBeside& beside,
    const Model& model) {
  for (const AddedToken& token : beside.listed) {
    if (!token.content.empty() && find_piece(model, token.content) == nullptr)
      return token.content;
  }
  return std::nullopt;
}

json sentencepiece_json(
    const Model& model,
    const TokensBeside& beside,
    const std::string& file) {
  SentencePieceJsonOptions options;
  if (!names_only_symbols(beside, model))
    options.prepend_scheme = beside.is_legacy ? "always" : "first";
  json tokenizer = sentencepiece_json(model, options);
  const HuggingFaceTokenizer engine(tokenizer.dump(), file, beside);
  options.tokens = engine.added_tokens();
  if (beside.adds_bos)
    options.begin = beside.names.bos;
  if (beside.adds_eos)
    options.end = beside.names.eos;
  tokenizer["added_tokens"] = added_tokens_of(model, options);
  tokenizer["post_processor"] = template_of(model, options);
  return tokenizer;
}

std::optional<std::string> convert_sentencepiece(const fs::path& path) {
  const MappedFile file(path);
  const Model model = parse_sentencepiece_model(file.text(), path.string());
  if (reason_not_to_convert(model))
    return std::nullopt;
  const TokensBeside beside = read_tokens_beside(path, model);
  return sentencepiece_json(model, beside, path.string()).dump(2) + "\n";
}

json sentencepiece_json(
    const Model& model,
    const SentencePieceJsonOptions& options) {
  const bool is_metaspace = !options.prepend_scheme.empty();
  json vocabulary = json::object();
  for (size_t id = 0; id < model.pieces.size(); ++id)
    vocabulary[model.pieces[id].text] = id;
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
      {"added_tokens", added_tokens_of(model, options)},
      {"normalizer", is_metaspace ? json() : normalizer_of(model)},
      {"pre_tokenizer",
       is_metaspace ? metaspace_of(model, options.prepend_scheme) : json()},
      {"post_processor", template_of(model, options)},
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
