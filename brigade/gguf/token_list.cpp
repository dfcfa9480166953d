#include "brigade/gguf/token_list.h"

#include <fmt/format.h>

#include <unordered_map>

#include "brigade/base/error.h"

namespace brigade {

void TokenList::set(int64_t id, const GgufToken& token) {
  if (!holds(id)) {
    throw ConfigError(fmt::format(
        "[gguf] the tokenizer's token \"{}\" has id {}, beyond the model's "
        "vocabulary of {}",
        token.text,
        id,
        tokens_.size()));
  }
  tokens_[static_cast<size_t>(id)] = token;
}

void TokenList::add_to(std::vector<GgufEntry>& entries) const {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::unordered_map<std::string, size_t> ids;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const GgufToken& token = tokens_[id];
    texts.push_back(
        token.text.empty() ? fmt::format("[PAD{}]", id) : token.text);
    types.push_back(static_cast<int32_t>(token.type));
    const auto [other, is_new] = ids.emplace(texts.back(), id);
    if (!is_new) {
      throw ConfigError(fmt::format(
          "[gguf] the token \"{}\" has the ids {} and {}; llama.cpp takes one",
          texts.back(),
          other->second,
          id));
    }
  }
  entries.push_back({"tokenizer.ggml.tokens", std::move(texts)});
  entries.push_back({"tokenizer.ggml.token_type", std::move(types)});
}

void TokenList::add_scores_to(std::vector<GgufEntry>& entries) const {
  std::vector<float> scores;
  scores.reserve(tokens_.size());
  for (const GgufToken& token : tokens_)
    scores.push_back(token.score);
  entries.push_back({"tokenizer.ggml.scores", std::move(scores)});
}

}  // namespace brigade
