// Remembers the tokens of words: natural text repeats a few thousand of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace brigade {

// Bounded: when full it is cleared. Not thread-safe; one for each thread.
class WordCache {
 public:
  // How the word is to be read; the same bytes differ between kinds.
  enum class Kind : uint32_t { kText = 0, kBytes = 1, kPart = 2 };
  static constexpr size_t kMaxWordBytes = 64;

  // Appends the word's tokens to `ids`; false when it is not known. Words have
  // at most kMaxWordBytes.
  bool find(Kind kind, std::string_view word, std::vector<int32_t>& ids);
  // Keeps a word that find() did not know.
  void insert(Kind kind, std::string_view word, std::span<const int32_t> ids);

  // Appends the word's tokens, which `encode()` appends if they are not known.
  // Words may have any length; long ones are not remembered.
  template <typename Encode>
  void append(
      Kind kind,
      std::string_view word,
      std::vector<int32_t>& ids,
      Encode&& encode) {
    const bool is_remembered = word.size() <= kMaxWordBytes;
    if (is_remembered && find(kind, word, ids))
      return;
    const size_t begin = ids.size();
    encode();
    if (is_remembered)
      insert(kind, word, std::span<const int32_t>(ids).subspan(begin));
  }

 private:
  // An entry in the arena: header (size and kind), number of ids, ids, bytes.
  static constexpr size_t kSlots = size_t{1} << 16;
  static constexpr size_t kMaxWords = kSlots / 2;
  static constexpr size_t kMaxArena = size_t{1} << 20;  // 4 MB
  static constexpr size_t kMaxProbes = 16;
  struct Slot {
    uint32_t tag = 0;
    uint32_t entry = 0;  // index into arena_; 0: free
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> arena_;
  size_t words_ = 0;

  void clear();
};

}  // namespace brigade
