#include "brigade/tokenizer/bpe_model.h"

#include <utility>

#include "brigade/base/error.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

// Shorter words are merged whole: looking for cuts costs more than it saves.
constexpr size_t kMinCutBytes = 32;
}  // namespace

std::optional<int32_t> BpeModel::token_id(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt
                             : std::optional<int32_t>(found->second);
}

const std::string* BpeModel::token_text(int32_t id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : found->second;
}

void BpeModel::tokenize(
    const Piece& word,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  using Kind = BpeWordCache::Kind;
  const Kind kind = word.byte_level ? Kind::kBytes : Kind::kText;
  const bool cached = word.text.size() <= BpeWordCache::kMaxWordBytes;
  if (cached && scratch.cache.find(kind, word.text, ids))
    return;
  const size_t begin = ids.size();
  if (word.byte_level)
    tokenize_text(ByteAlphabet::encode(word.text), scratch, ids);
  else
    tokenize_text(word.text, scratch, ids);
  if (cached)
    scratch.cache.insert(
        kind, word.text, std::span<const int32_t>(ids).subspan(begin));
}

// Whether two adjacent characters can be tokenized apart. Beyond merges, an
// unknown token may wait for the character that follows it (and fuse with it),
// and a character without any token disappears, so that its neighbours meet.
bool BpeModel::may_cut(const Character& left, const Character& right) const {
  if ((left.id < 0 || right.id < 0) && !all_bytes_)
    return false;
  return boundaries_.is_safe(left.left_class, right.right_class);
}

void BpeModel::tokenize_text(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  if (ignore_merges_ && text.size() <= max_token_bytes_) {
    if (const auto id = token_id(text)) {
      ids.push_back(*id);
      return;
    }
  }
  if (text.size() < kMinCutBytes) {
    merge_word(text, scratch, ids);
    return;
  }
  size_t begin = 0;
  const Character* previous = nullptr;
  for (size_t at = 0; at < text.size();) {
    const Character& current = character(utf8_code_point(text, at));
    if (previous && may_cut(*previous, current)) {
      tokenize_part(text.substr(begin, at - begin), scratch, ids);
      begin = at;
    }
    previous = &current;
    at += utf8_length(text[at]);
  }
  tokenize_part(text.substr(begin), scratch, ids);
}

void BpeModel::tokenize_part(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  using Kind = BpeWordCache::Kind;
  if (text.size() > BpeWordCache::kMaxWordBytes) {
    merge_word(text, scratch, ids);
    return;
  }
  if (scratch.cache.find(Kind::kPart, text, ids))
    return;
  const size_t begin = ids.size();
  merge_word(text, scratch, ids);
  scratch.cache.insert(
      Kind::kPart, text, std::span<const int32_t>(ids).subspan(begin));
}

void BpeModel::merge_word(
    std::string_view text,
    BpeScratch& scratch,
    std::vector<int32_t>& ids) const {
  if (text.size() > INT32_MAX)
    throw DataError(fmt::format(
        "[tokenizer] {}: a word of {} bytes is too long; cut the text into "
        "documents of less than 2 GB",
        file_,
        text.size()));
  auto& tokens = scratch.tokens;
  tokens.clear();
  bool unk_waits = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text[at]);
    const Character& current = character(utf8_code_point(text, at));
    if (current.id >= 0) {
      if (std::exchange(unk_waits, false))
        tokens.push_back(unk_id_);
      tokens.push_back(current.id);
    } else {
      bool spelled = byte_fallback_;
      for (size_t i = 0; i < length; ++i)
        spelled = spelled && byte_ids_[static_cast<uint8_t>(text[at + i])] >= 0;
      if (spelled) {
        // An unknown token that waits goes on waiting: it will stand behind
        // these bytes, as in Hugging Face's engine.
        for (size_t i = 0; i < length; ++i)
          tokens.push_back(byte_ids_[static_cast<uint8_t>(text[at + i])]);
      } else if (unk_token_) {
        if (unk_id_ < 0)
          throw DataError(fmt::format(
              "[tokenizer] {}: at /model/unk_token: \"{}\" is not in "
              "/model/vocab, and the character U+{:04X} needs it",
              file_,
              *unk_token_,
              static_cast<uint32_t>(utf8_code_point(text, at))));
        if (unk_waits && !fuse_unk_)
          tokens.push_back(unk_id_);
        unk_waits = true;
      }
      // Without an unknown token the character disappears.
    }
    at += length;
  }
  if (unk_waits)
    tokens.push_back(unk_id_);
  merge_tokens(merges_, tokens, scratch.merge);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
}

}  // namespace brigade
