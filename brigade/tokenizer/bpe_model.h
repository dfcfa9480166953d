// The "model" of a tokenizer.json of type BPE: vocabulary, merges and what to
// do with characters that the vocabulary lacks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "brigade/json/node.h"
#include "brigade/tokenizer/bpe_boundaries.h"
#include "brigade/tokenizer/bpe_merges.h"
#include "brigade/tokenizer/bpe_word_cache.h"
#include "brigade/tokenizer/pre_tokenizer.h"

namespace brigade {

// What one thread needs to tokenize.
struct BpeScratch {
  BpeWordCache cache;
  BpeMergeScratch merge;
  std::vector<int32_t> tokens;
};

// Immutable once made; thread-safe with one BpeScratch per thread.
class BpeModel {
 public:
  // Throws DataError at the JSON path of the part that is wrong or unsupported
  // (dropout, continuing_subword_prefix, end_of_word_suffix).
  explicit BpeModel(const JsonNode& node);

  // Appends the tokens of one word to `ids`.
  void tokenize(
      const Piece& word,
      BpeScratch& scratch,
      std::vector<int32_t>& ids) const;

  std::optional<int32_t> token_id(std::string_view text) const;
  // nullptr when no token has the id.
  const std::string* token_text(int32_t id) const;
  int64_t token_count() const { return static_cast<int64_t>(ids_.size()); }
  int64_t merge_count() const { return merge_count_; }
  int32_t max_id() const { return max_id_; }

 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  struct Character {
    int32_t id = -1;
    uint16_t left_class = 0;
    uint16_t right_class = 0;
  };

  std::string file_;
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  std::unordered_map<int32_t, const std::string*> texts_;  // into ids_
  int32_t max_id_ = -1;
  size_t max_token_bytes_ = 0;
  BpeMergeTable merges_;
  int64_t merge_count_ = 0;
  BpeBoundaries boundaries_;
  // By code point: page index, then 256 characters a page; page 0 is empty.
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

  void read_vocabulary(const JsonNode& node);
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
  bool may_cut(const Character& left, const Character& right) const;
  void tokenize_text(
      std::string_view text,
      BpeScratch& scratch,
      std::vector<int32_t>& ids) const;
  void tokenize_part(
      std::string_view text,
      BpeScratch& scratch,
      std::vector<int32_t>& ids) const;
  void merge_word(
      std::string_view text,
      BpeScratch& scratch,
      std::vector<int32_t>& ids) const;
};

}  // namespace brigade
