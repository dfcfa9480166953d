#include "brigade/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <utility>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/pattern.h"

namespace brigade {

class HuggingFaceTokenizer::Lease {
 public:
  explicit Lease(const HuggingFaceTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner_.mutex_);
      if (!owner_.idle_.empty()) {
        scratch_ = std::move(owner_.idle_.back());
        owner_.idle_.pop_back();
      }
    }
    if (!scratch_) {
      scratch_ = std::make_unique<Scratch>();
      scratch_->model = owner_.model_->make_scratch();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  const HuggingFaceTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

std::optional<std::string> HuggingFaceTokenizer::token_text(int32_t id) const {
  if (const auto added = added_.find(id); added != added_.end())
    return added->second.token.content;
  if (const std::string* text = model_->vocabulary().text(id))
    return *text;
  return std::nullopt;
}

std::optional<int32_t> HuggingFaceTokenizer::token_id(
    std::string_view text) const {
  if (const auto added = added_ids_.find(std::string(text));
      added != added_ids_.end())
    return added->second;
  return model_->vocabulary().id(text);
}

std::vector<AddedToken> HuggingFaceTokenizer::added_tokens() const {
  std::vector<AddedToken> tokens;
  tokens.reserve(added_.size());
  for (const auto& [id, added] : added_)
    tokens.push_back(added.token);
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
    return a.id < b.id;
  });
  return tokens;
}

std::vector<int32_t> HuggingFaceTokenizer::encode(
    std::string_view text,
    const EncodeOptions& options) const {
  require_utf8(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  Lease lease(*this);
  Scratch& scratch = *lease;
  raw_matcher_.cut(
      text,
      [&](size_t begin, size_t end) {
        encode_raw(text.substr(begin, end - begin), begin == 0, scratch, ids);
      },
      [&](const AddedToken& token, size_t begin, size_t end) {
        // One that strips on the left, or looks at a neighbour, depends on
        // what stands in front.
        if (options.places && !token.lstrip && !token.single_word)
          options.places->push_back({begin, end, ids.size()});
        ids.push_back(token.id);
      });
  post_processor_.process(ids, options.special_tokens);
  return ids;
}

void HuggingFaceTokenizer::encode_raw(
    std::string_view text,
    bool at_start,
    Scratch& scratch,
    std::vector<int32_t>& ids) const {
  NormalizedText normalized{
      .at_start = at_start, .max_bytes = max_grown_bytes(text.size())};
  if (normalizer_) {
    normalized.text = text;
    normalizer_(normalized, scratch.regex);
    text = normalized.text;
  }
  const auto tokenize = [&](const Piece& piece) {
    model_->tokenize(piece, *scratch.model, ids);
  };
  normalized_matcher_.cut(
      text,
      [&](size_t begin, size_t end) {
        const Piece piece{
            .text = text.substr(begin, end - begin),
            .at_start = normalized.at_start && begin == 0};
        if (pre_tokenizer_)
          pre_tokenizer_(piece, scratch.regex, std::ref(tokenize));
        else
          tokenize(piece);
      },
      [&](const AddedToken& token, size_t, size_t) {
        ids.push_back(token.id);
      });
}

std::string HuggingFaceTokenizer::decode(
    std::span<const int32_t> ids,
    const DecodeOptions& options) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const auto added = added_.find(id);
    const std::string* text = added == added_.end()
                                  ? model_->vocabulary().text(id)
                                  : &added->second.normalized;
    if (!text || (options.skip_special_tokens && special_.contains(*text)))
      continue;
    tokens.push_back(*text);
  }
  std::string out;
  if (decoder_) {
    Lease lease(*this);
    decoder_(tokens, (*lease).regex);
    for (const std::string& token : tokens)
      out += token;
    return out;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0)
      out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace brigade
