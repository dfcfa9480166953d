#include "brigade/tokenizer/token_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/tokenizer/bpe_model.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/json_parts.h"

namespace brigade {
namespace {

std::string model_type(const JsonNode& node) {
  node.require_object();
  if (const auto type = node.find("type"))
    return type->string();
  if (node.at("vocab").value().is_array())
    return "Unigram";
  return node.find("max_input_chars_per_word") ? "WordPiece" : "BPE";
}

}  // namespace

void TokenModel::tokenize(
    const Piece& word,
    ModelScratch& scratch,
    std::vector<int32_t>& ids) const {
  using Kind = WordCache::Kind;
  const Kind kind = word.byte_level ? Kind::kBytes : Kind::kText;
  scratch.cache.append(kind, word.text, ids, [&] {
    if (word.byte_level)
      encode(ByteAlphabet::encode(word.text), scratch, ids);
    else
      encode(word.text, scratch, ids);
  });
}

std::unique_ptr<TokenModel> make_token_model(const JsonNode& node) {
  const std::string type = model_type(node);
  if (type == "BPE")
    return std::make_unique<BpeModel>(node);
  if (type == "Unigram")
    return make_unigram_model(node);
  if (type == "WordPiece")
    return make_word_piece_model(node);
  refuse(node.at("type"), fmt::format("the model \"{}\"", type));
}

}  // namespace brigade
