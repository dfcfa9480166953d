#include "brigade/gguf/sentencepiece_tokens.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/sentencepiece_model.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr const char* kSpacePiece = "\u2581";
constexpr float kUnreachableScore = -1e9F;

[[noreturn]] void refuse_tokenizer(const std::string& what) {
  throw ConfigError("[gguf] the tokenizer has no equal in llama.cpp: " + what);
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
}

std::pair<std::string, std::string> parts_of_merge(const json& merge) {
  if (merge.is_array())
    return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto line = merge.get<std::string>();
  const size_t space = line.find(' ');
  if (space != line.rfind(' '))
    refuse_tokenizer(fmt::format("the merge \"{}\" has several spaces", line));
  return {line.substr(0, space), line.substr(space + 1)};
}

// Scores with which the highest-scored pair is the one of the lowest rank.
class MergeScores {
 public:
  explicit MergeScores(const json& model) : model_(model) {
    std::string last;
    for (const json& merge : model.at("merges")) {
      auto pair = parts_of_merge(merge);
      std::string whole = pair.first + pair.second;
      const float score = -static_cast<float>(scores_.size());
      if (!scores_.emplace(whole, score).second && whole != last) {
        refuse_tokenizer(fmt::format(
            "the merges that make \"{}\" do not follow each other", whole));
      }
      last = std::move(whole);
      merges_.insert(std::move(pair));
    }
  }

  float score(const std::string& text) const {
    const auto found = scores_.find(text);
    return found == scores_.end() ? kUnreachableScore : found->second;
  }

  // llama.cpp makes a piece of any two of its parts.
  void require_all_merges(const std::set<std::string>& special) const {
    const json& vocabulary = model_.at("vocab");
    const auto is_piece = [&](const std::string& text) {
      return vocabulary.contains(text) && !special.contains(text);
    };
    for (const auto& [text, id] : vocabulary.items()) {
      if (special.contains(text) || is_byte_token(text) || text.empty())
        continue;
      for (size_t cut = utf8_length(text[0]); cut < text.size();
           cut += utf8_length(text[cut])) {
        std::pair<std::string, std::string> parts{
            text.substr(0, cut), text.substr(cut)};
        if (is_piece(parts.first) && is_piece(parts.second) &&
            !merges_.contains(parts)) {
          refuse_tokenizer(fmt::format(
              "\"{}\" and \"{}\" are not merged, but llama.cpp would, since "
              "\"{}\" is a token",
              parts.first,
              parts.second,
              text));
        }
      }
    }
  }

 private:
  const json& model_;
  std::unordered_map<std::string, float> scores_;
  std::set<std::pair<std::string, std::string>> merges_;
};

// The parts of a Sequence, or the node itself.
std::vector<json> parts_of(const json& node, const char* key) {
  if (!node.is_object())
    return {};
  if (node.value("type", "") != "Sequence")
    return {node};
  return node.at(key).get<std::vector<json>>();
}

bool replaces_spaces(const json& part) {
  return part.value("type", "") == "Replace" &&
         part.at("pattern").value("String", "") == " " &&
         part.value("content", "") == kSpacePiece;
}

// How spaces become U+2581, and whether one goes in front.
SentencePieceTokens read_spaces(const json& tokenizer) {
  SentencePieceTokens result;
  bool is_replaced = false;
  for (const json& part :
       parts_of(tokenizer.value("normalizer", json()), "normalizers")) {
    if (part.value("type", "") == "Prepend" &&
        part.value("prepend", "") == kSpacePiece && !is_replaced) {
      result.prefix = SpacePrefix::kBeforeText;
    } else if (replaces_spaces(part)) {
      is_replaced = true;
    } else {
      refuse_tokenizer("the normalizer " + part.dump());
    }
  }
  for (const json& part :
       parts_of(tokenizer.value("pre_tokenizer", json()), "pretokenizers")) {
    const std::string type = part.value("type", "");
    const bool finds_no_space = type == "Split" && is_replaced &&
                                part.at("pattern").value("String", "") == " ";
    if (finds_no_space)
      continue;
    if (type != "Metaspace" || is_replaced ||
        part.value("replacement", "") != kSpacePiece ||
        part.value("split", true))
      refuse_tokenizer("the pre-tokenizer " + part.dump());
    is_replaced = true;
    const bool prepends = part.value("prepend_scheme", "always") != "never" &&
                          part.value("add_prefix_space", true);
    if (prepends) {
      result.prefix = SpacePrefix::kBeforeText;
      result.difference =
          "llama.cpp puts a space before every text, after special tokens and "
          "before another space too; the pre-tokenizer Metaspace does not";
    }
  }
  if (!is_replaced)
    refuse_tokenizer("spaces do not become U+2581");
  return result;
}

}  // namespace

SentencePieceTokens add_sentencepiece_json(
    const json& tokenizer,
    TokenList& tokens) {
  const json& model = tokenizer.at("model");
  const SentencePieceTokens result = read_spaces(tokenizer);
  const MergeScores scores(model);
  const json unknown = model.value("unk_token", json());
  size_t bytes = 0;
  std::set<std::string> special;
  for (const json& added : tokenizer.value("added_tokens", json::array())) {
    if (added.value("special", false))
      special.insert(added.at("content").get<std::string>());
  }
  for (const auto& [text, id] : model.at("vocab").items()) {
    GgufToken token{text, scores.score(text), TokenType::kNormal};
    if (unknown == text) {
      token.type = TokenType::kUnknown;
    } else if (is_byte_token(text)) {
      token.type = TokenType::kByte;
      ++bytes;
    }
    tokens.set(id.get<int64_t>(), token);
  }
  if (bytes != 256)
    refuse_tokenizer(fmt::format("it has {} of the 256 byte tokens", bytes));
  scores.require_all_merges(special);
  return result;
}

SentencePieceTokens add_sentencepiece_model(
    const std::filesystem::path& path,
    TokenList& tokens) {
  const MappedFile file(path);
  const SentencePieceModel model = parse_sentencepiece_model(
      {reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes()},
      path.string());
  if (model.algorithm != SentencePieceModel::Algorithm::kBpe)
    refuse_tokenizer("the .model is not of the kind BPE");
  if (!model.charsmap.empty() || model.removes_extra_white_space ||
      !model.escapes_white_space)
    refuse_tokenizer("the .model normalises the text");
  if (model.white_space_is_suffix)
    refuse_tokenizer("white space ends the .model's words");
  if (!model.byte_fallback)
    refuse_tokenizer("the .model does not spell unknown characters in bytes");
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    tokens.set(
        static_cast<int64_t>(id),
        {piece.text, piece.score, static_cast<TokenType>(piece.type)});
  }
  for (const TokenBeside& token :
       read_files_beside(path.parent_path()).tokens) {
    if (!tokens.holds(token.id))
      continue;
    const auto at = static_cast<size_t>(token.id);
    if (tokens.tokens()[at].text == token.content)
      continue;
    tokens.set(
        token.id,
        {token.content,
         kUnreachableScore,
         token.is_special ? TokenType::kControl : TokenType::kUserDefined});
  }
  return {
      model.adds_dummy_prefix ? SpacePrefix::kBeforeText : SpacePrefix::kNone,
      ""};
}

}  // namespace brigade
