#include "brigade/tokenizer/bpe_model.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"

namespace brigade {
namespace {

// Shorter words are merged whole: looking for cuts costs more than it saves.
constexpr size_t kMinCutBytes = 32;
}  // namespace

struct BpeModel::Scratch : ModelScratch {
  BpeMergeScratch merge;
  std::vector<int32_t> tokens;
  std::string spelled;
};

std::unique_ptr<ModelScratch> BpeModel::make_scratch() const {
  return std::make_unique<Scratch>();
}

std::string BpeModel::summary() const {
  return fmt::format("BPE with {} merges", merge_count_);
}

// Whether two adjacent characters can be tokenized apart. Beyond merges, an
// unknown token may wait for the character that follows it (and fuse with it),
// and a character without any token disappears, so that its neighbours meet.
bool BpeModel::may_cut(const Character& left, const Character& right) const {
  if ((left.id < 0 || right.id < 0) && !all_bytes_)
    return false;
  return boundaries_.is_safe(left.left_class, right.right_class);
}

void BpeModel::encode(
    std::string_view text,
    ModelScratch& scratch,
    std::vector<int32_t>& ids) const {
  auto& own = static_cast<Scratch&>(scratch);
  if (ignore_merges_ && text.size() <= vocabulary_.max_token_bytes()) {
    if (const auto id = vocabulary_.id(text)) {
      ids.push_back(*id);
      return;
    }
  }
  if (text.size() < kMinCutBytes || has_affixes()) {
    merge_word(text, own, ids);
    return;
  }
  size_t begin = 0;
  const Character* previous = nullptr;
  for (size_t at = 0; at < text.size();) {
    const Character& current = character(utf8_code_point(text, at));
    if (previous && may_cut(*previous, current)) {
      tokenize_part(text.substr(begin, at - begin), own, ids);
      begin = at;
    }
    previous = &current;
    at += utf8_length(text[at]);
  }
  tokenize_part(text.substr(begin), own, ids);
}

void BpeModel::tokenize_part(
    std::string_view text,
    Scratch& scratch,
    std::vector<int32_t>& ids) const {
  scratch.cache.append(WordCache::Kind::kPart, text, ids, [&] {
    merge_word(text, scratch, ids);
  });
}

int32_t BpeModel::character_token(
    std::string_view text,
    size_t at,
    size_t length,
    std::string_view& spelled,
    Scratch& scratch) const {
  spelled = text.substr(at, length);
  const bool has_prefix = at > 0 && !prefix_.empty();
  const bool has_suffix = at + length == text.size() && !suffix_.empty();
  if (!has_prefix && !has_suffix)
    return character(utf8_code_point(text, at)).id;
  scratch.spelled.clear();
  if (has_prefix)
    scratch.spelled += prefix_;
  scratch.spelled += spelled;
  if (has_suffix)
    scratch.spelled += suffix_;
  spelled = scratch.spelled;
  return vocabulary_.id(spelled).value_or(-1);
}

void BpeModel::merge_word(
    std::string_view text,
    Scratch& scratch,
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
    std::string_view spelled;
    const int32_t id = character_token(text, at, length, spelled, scratch);
    if (id >= 0) {
      if (std::exchange(unk_waits, false))
        tokens.push_back(unk_id_);
      tokens.push_back(id);
    } else {
      bool has_bytes = byte_fallback_;
      for (const char byte : spelled)
        has_bytes = has_bytes && byte_ids_[static_cast<uint8_t>(byte)] >= 0;
      if (has_bytes) {
        // An unknown token that waits goes on waiting: it will stand behind
        // these bytes, as in Hugging Face's engine.
        for (const char byte : spelled)
          tokens.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
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
