// A tokenizer as a model may use it. Many are published with more tokens than
// their model has rows (Code Llama, Gemma 3 1B), which do no harm until one of
// them occurs.
#pragma once

#include <memory>
#include <utility>

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

class LimitedTokenizer : public Tokenizer {
 public:
  LimitedTokenizer(std::unique_ptr<Tokenizer> tokenizer, int64_t rows)
      : tokenizer_(std::move(tokenizer)), rows_(rows) {}

  // Throws DataError naming the token when the model has no row for one.
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options = {}) const override;

  std::string decode(
      std::span<const int32_t> ids,
      const DecodeOptions& options = {}) const override {
    return tokenizer_->decode(ids, options);
  }
  size_t cut_before(std::string_view text, size_t at) const override {
    return tokenizer_->cut_before(text, at);
  }
  int64_t vocab_size() const override { return tokenizer_->vocab_size(); }
  std::optional<int32_t> bos_id() const override {
    return tokenizer_->bos_id();
  }
  std::optional<int32_t> eos_id() const override {
    return tokenizer_->eos_id();
  }
  std::optional<std::string> token_text(int32_t id) const override {
    return tokenizer_->token_text(id);
  }
  std::optional<int32_t> token_id(std::string_view text) const override {
    return tokenizer_->token_id(text);
  }
  std::string description() const override { return tokenizer_->description(); }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t rows_;
};

}  // namespace brigade
