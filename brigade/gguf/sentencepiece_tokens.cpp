#include "brigade/gguf/sentencepiece_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/sentencepiece_model.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr const char* kSpacePiece = "\u2581";
constexpr float kUnreachableScore = -1e9F;
constexpr const char* kMetaspaceDifference =
    "llama.cpp puts a space before every text and after every special token, "
    "before another space too; the pre-tokenizer Metaspace never does before a "
    "space, and after special tokens only with the prepend_scheme always";

[[noreturn]] void refuse_tokenizer(const std::string& what) {
  throw ConfigError("[gguf] the tokenizer has no equal in llama.cpp: " + what);
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
}

// Spaces become U+2581 before anything is merged.
bool has_space(const std::string& text) {
  return text.find(' ') != std::string::npos;
}

struct Merge {
  std::string left;
  std::string right;
  std::string whole() const { return left + right; }
};

// Those that can happen, by rank.
std::vector<Merge> read_merges(const json& model) {
  std::vector<Merge> merges;
  for (const json& entry : model.at("merges")) {
    Merge merge;
    if (entry.is_array()) {
      merge = {entry.at(0).get<std::string>(), entry.at(1).get<std::string>()};
    } else {
      const auto line = entry.get<std::string>();
      const size_t space = line.find(' ');
      merge = {line.substr(0, space), line.substr(space + 1)};
    }
    if (!has_space(merge.whole()))
      merges.push_back(std::move(merge));
  }
  return merges;
}

// Scores with which the highest-scored pair is the one of the lowest rank.
class MergeScores {
 public:
  explicit MergeScores(const json& model) : model_(model) {
    const std::vector<Merge> merges = read_merges(model);
    std::unordered_map<std::string, size_t> last;
    for (size_t i = 0; i < merges.size(); ++i)
      last[merges[i].whole()] = i;
    // What is between merges of one piece has its score.
    for (size_t begin = 0; begin < merges.size();) {
      size_t end = begin + 1;
      for (size_t i = begin; i < end; ++i)
        end = std::max(end, last.at(merges[i].whole()) + 1);
      add({&merges[begin], end - begin});
      begin = end;
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
      if (special.contains(text) || is_byte_token(text) || text.empty() ||
          has_space(text))
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

  void add(std::span<const Merge> block) {
    const float score = -static_cast<float>(scores_.size());
    std::set<std::string> pieces;
    for (const Merge& merge : block) {
      pieces.insert(merge.whole());
      scores_[merge.whole()] = score;
      merges_.emplace(merge.left, merge.right);
    }
    if (pieces.size() > 1 && !grow_from_left(pieces)) {
      refuse_tokenizer(fmt::format(
          "the merges that make \"{}\" do not follow each other; put its "
          "tokenizer.model into its place, whose scores llama.cpp follows",
          block.front().whole()));
    }
  }

  // Whether the pieces may have one score, of which llama.cpp takes the
  // leftmost: they are the runs of 3 to n of a character, and two characters
  // are merged later. Then a run that has begun goes on before the next one
  // begins, here as there. Llama 2's runs of spaces are such pieces.
  bool grow_from_left(const std::set<std::string>& pieces) const {
    const std::string& shortest = *pieces.begin();
    const std::string one = shortest.substr(0, utf8_length(shortest[0]));
    std::string run = one + one;
    if (scores_.contains(run))
      return false;
    for (const std::string& piece : pieces) {
      run += one;
      if (piece != run)
        return false;
    }
    return true;
  }
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
      result.difference = kMetaspaceDifference;
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
    GgufToken token{text, scores.score(text), PieceType::kNormal};
    if (unknown == text) {
      token.type = PieceType::kUnknown;
    } else if (is_byte_token(text)) {
      token.type = PieceType::kByte;
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
    const std::vector<AddedToken>& added,
    TokenList& tokens) {
  const MappedFile file(path);
  const SentencePieceModel model =
      parse_sentencepiece_model(file.text(), path.string());
  if (model.algorithm != SentencePieceModel::Algorithm::kBpe)
    refuse_tokenizer("the .model is not of the kind BPE");
  if (!model.charsmap.empty() || model.removes_extra_white_space ||
      !model.escapes_white_space)
    refuse_tokenizer("the .model normalises the text");
  if (model.white_space_is_suffix)
    refuse_tokenizer("white space ends the .model's words");
  if (!model.byte_fallback)
    refuse_tokenizer("the .model does not spell unknown characters in bytes");
  SentencePieceTokens result;
  if (model.adds_dummy_prefix)
    result.prefix = SpacePrefix::kBeforeText;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const GgufToken& piece = model.pieces[id];
    if (piece.type == PieceType::kUserDefined && model.adds_dummy_prefix)
      result.difference =
          "llama.cpp puts a space behind the user's symbols in a text too, "
          "such as \"" +
          piece.text + "\"";
    tokens.set(static_cast<int64_t>(id), piece);
  }
  if (!added.empty() && model.adds_dummy_prefix)
    result.difference = kMetaspaceDifference;
  for (const AddedToken& token : added) {
    if (!tokens.holds(token.id))
      continue;
    const auto at = static_cast<size_t>(token.id);
    const PieceType type =
        token.special ? PieceType::kControl : PieceType::kUserDefined;
    GgufToken piece = tokens.tokens()[at];
    if (piece.text != token.content)
      piece = {token.content, kUnreachableScore, type};
    else if (piece.type == PieceType::kNormal)
      piece.type = type;
    tokens.set(token.id, piece);
  }
  return result;
}

}  // namespace brigade
