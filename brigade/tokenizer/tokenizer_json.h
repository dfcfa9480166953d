// A tokenizer.json of Hugging Face, interpreted part by part: added tokens,
// normalizer, pre-tokenizer, model, post-processor, decoder. Gives the same
// tokens as the engine of the `tokenizers` library.
//
// Two fields are read and not followed: "truncation" and "padding" are about
// batches, and transformers resets them too.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "brigade/tokenizer/added_tokens.h"
#include "brigade/tokenizer/decoder.h"
#include "brigade/tokenizer/normalizer.h"
#include "brigade/tokenizer/post_processor.h"
#include "brigade/tokenizer/pre_tokenizer.h"
#include "brigade/tokenizer/token_model.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/tokens_beside.h"

namespace brigade {

class HuggingFaceTokenizer : public Tokenizer {
 public:
  // Reads `path` and what is beside it (tokens_beside.h). Throws DataError with
  // the JSON path.
  static std::unique_ptr<HuggingFaceTokenizer> load(
      const std::filesystem::path& path);
  // `text` is the JSON, `name` what errors call it.
  HuggingFaceTokenizer(
      std::string_view text,
      const std::string& name,
      const TokensBeside& beside = {});

  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options = {}) const override;
  std::string decode(
      std::span<const int32_t> ids,
      const DecodeOptions& options = {}) const override;
  size_t cut_before(std::string_view text, size_t at) const override {
    return cuts_.cut_before(text, at);
  }
  int64_t vocab_size() const override { return max_id_ + 1; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::optional<std::string> token_text(int32_t id) const override;
  std::optional<int32_t> token_id(std::string_view text) const override;
  std::string description() const override { return description_; }

  // Those of the file and those beside it, ascending by id.
  std::vector<AddedToken> added_tokens() const;

 private:
  // Buffers of one thread; kept between calls, as many as ever ran at once.
  struct Scratch {
    RegexScratch regex;
    std::unique_ptr<ModelScratch> model;
  };
  class Lease;
  struct Added {
    AddedToken token;
    std::string normalized;  // the content as the normalizer writes it
  };

  std::string name_;
  // Empty: there is none.
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  PostProcessor post_processor_;
  Decoder decoder_;
  std::unordered_map<int32_t, Added> added_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_set<std::string> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  AddedTokenCuts cuts_;
  int64_t max_id_ = -1;
  std::optional<int32_t> bos_;
  std::optional<int32_t> eos_;
  std::string description_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;

  void read(const JsonNode& root, const TokensBeside& beside);
  void read_added_token(const JsonNode& node, RegexScratch& scratch);
  void add_tokens_beside(const TokensBeside& beside, RegexScratch& scratch);
  int32_t next_free_id() const;
  void add(AddedToken token, RegexScratch& scratch);
  void build_matchers();
  void check_template(const JsonNode& node) const;
  void find_bos_and_eos(const SpecialNames& names);
  void encode_raw(
      std::string_view text,
      bool at_start,
      Scratch& scratch,
      std::vector<int32_t>& ids) const;
};

}  // namespace brigade
