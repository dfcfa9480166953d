#include "brigade/tokenizer/word_cache.h"

#include <cstring>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// A multiply-and-fold hash over eight bytes at a time; the tail overlaps.
uint64_t hash_word(uint32_t header, std::string_view word) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
  uint64_t hash = header * kFactor;
  const auto fold = [&](uint64_t chunk) {
    hash = (hash ^ chunk) * kFactor;
    hash ^= hash >> 32;
  };
  uint64_t chunk = 0;
  const char* at = word.data();
  size_t left = word.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::memcpy(&chunk, at, 8);
    fold(chunk);
  }
  chunk = 0;
  for (size_t i = 0; i < left; ++i)
    chunk = chunk << 8 | static_cast<unsigned char>(at[i]);
  fold(chunk);
  return hash;
}

uint32_t header_of(WordCache::Kind kind, std::string_view word) {
  return static_cast<uint32_t>(kind) << 16 | static_cast<uint32_t>(word.size());
}

}  // namespace

void WordCache::clear() {
  slots_.assign(kSlots, {});
  arena_.assign(1, 0);
  words_ = 0;
}

bool WordCache::find(
    Kind kind,
    std::string_view word,
    std::vector<int32_t>& ids) {
  if (slots_.empty())
    clear();
  const uint32_t header = header_of(kind, word);
  const uint64_t hash = hash_word(header, word);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t probe = 0; probe < kMaxProbes; ++probe) {
    const Slot& slot = slots_[(hash + probe) % kSlots];
    if (slot.entry == 0)
      return false;
    const uint32_t* const entry = arena_.data() + slot.entry;
    if (slot.tag != tag || entry[0] != header)
      continue;
    const uint32_t* const tokens = entry + 2;
    if (std::memcmp(tokens + entry[1], word.data(), word.size()) != 0)
      continue;
    ids.insert(ids.end(), tokens, tokens + entry[1]);
    return true;
  }
  return false;
}

void WordCache::insert(
    Kind kind,
    std::string_view word,
    std::span<const int32_t> ids) {
  BRIGADE_ASSERT(word.size() <= kMaxWordBytes, "{} bytes", word.size());
  if (slots_.empty() || words_ >= kMaxWords || arena_.size() >= kMaxArena)
    clear();
  const uint64_t hash = hash_word(header_of(kind, word), word);
  Slot* slot = nullptr;
  for (size_t probe = 0; probe < kMaxProbes && !slot; ++probe) {
    Slot& candidate = slots_[(hash + probe) % kSlots];
    if (candidate.entry == 0)
      slot = &candidate;
  }
  if (!slot)
    slot = &slots_[hash % kSlots];  // where the word before is forgotten
  slot->tag = static_cast<uint32_t>(hash >> 32);
  slot->entry = static_cast<uint32_t>(arena_.size());
  const size_t byte_words = (word.size() + 3) / 4;
  arena_.push_back(header_of(kind, word));
  arena_.push_back(static_cast<uint32_t>(ids.size()));
  arena_.insert(arena_.end(), ids.begin(), ids.end());
  arena_.resize(arena_.size() + byte_words);
  std::memcpy(
      arena_.data() + arena_.size() - byte_words, word.data(), word.size());
  ++words_;
}

}  // namespace brigade
