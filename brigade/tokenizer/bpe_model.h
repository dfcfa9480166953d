// The "model" of a tokenizer.json of type BPE: vocabulary, merges and what to
// do with characters that the vocabulary lacks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/bpe_boundaries.h"
#include "brigade/tokenizer/bpe_merges.h"
#include "brigade/tokenizer/token_model.h"

namespace brigade {

class BpeModel : public TokenModel {
 public:
  // Throws DataError at the JSON path of the part that is wrong or unsupported
  // (dropout).
  explicit BpeModel(const JsonNode& node);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::string summary() const override;

 private:
  struct Scratch;
  struct Character {
    int32_t id = -1;
    uint16_t left_class = 0;
    uint16_t right_class = 0;
  };

  std::string file_;
  const Vocabulary vocabulary_;
  // They stand before every character of a word but the first, and behind the
  // last.
  std::string prefix_;
  std::string suffix_;
  BpeMergeTable merges_;
  int64_t merge_count_ = 0;
  BpeBoundaries boundaries_;
  // By code point: page index, then 256 characters per page; page 0 is empty.
  std::vector<uint16_t> page_of_;
  std::vector<std::array<Character, 256>> pages_;
  Character unknown_;  // stands for every character without a token
  // Tokens <0x00> to <0xFF>, -1 where the vocabulary lacks them.
  std::array<int32_t, 256> byte_ids_{};
  bool byte_fallback_ = false;
  bool all_bytes_ = false;  // byte_fallback_ with all 256 tokens
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  std::optional<std::string> unk_token_;
  int32_t unk_id_ = -1;

  void read_merges(const JsonNode& node);
  void index_characters();
  size_t separator(std::string_view line) const;
  int32_t require_token(
      const JsonNode& merges,
      size_t index,
      std::string_view text) const;

  const Character& character(char32_t c) const {
    const Character& known = pages_[page_of_[c >> 8]][c & 0xFF];
    return known.id >= 0 ? known : unknown_;
  }
  bool has_affixes() const { return !prefix_.empty() || !suffix_.empty(); }
  // The token of text[at, at + length), or -1; `spelled` becomes the characters
  // that it was looked for as.
  int32_t character_token(
      std::string_view text,
      size_t at,
      size_t length,
      std::string_view& spelled,
      Scratch& scratch) const;
  bool may_cut(const Character& left, const Character& right) const;
  void encode(
      std::string_view text,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const override;
  void tokenize_part(
      std::string_view text,
      Scratch& scratch,
      std::vector<int32_t>& ids) const;
  void merge_word(
      std::string_view text,
      Scratch& scratch,
      std::vector<int32_t>& ids) const;
};

}  // namespace brigade
