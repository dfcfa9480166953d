// The heart of byte pair encoding: which pair of tokens merges into which
// token, and with what priority. Source: Sennrich, Haddow, Birch, "Neural
// Machine Translation of Rare Words with Subword Units", 2016.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace brigade {

struct BpeMerge {
  static constexpr uint32_t kNoRank = UINT32_MAX;
  uint32_t rank = kNoRank;  // lower merges first
  int32_t id = -1;          // of the merged token
};

// (left, right) -> merge: an open-addressing table, read on every step of
// every merge.
class BpeMergeTable {
 public:
  // Room for `count` merges.
  explicit BpeMergeTable(size_t count);
  // A pair given twice keeps the later merge, as in Hugging Face's map.
  void set(int32_t left, int32_t right, BpeMerge merge);
  // rank kNoRank when the pair does not merge.
  BpeMerge find(int32_t left, int32_t right) const {
    const uint64_t wanted = key(left, right);
    for (size_t at = slot(wanted);; at = (at + 1) & mask_) {
      if (slots_[at].key == wanted)
        return slots_[at].merge;
      if (slots_[at].key == kEmpty)
        return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;  // ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    BpeMerge merge;
  };
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
           static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t of_key) const {
    return (of_key * 0x9E3779B97F4A7C15ULL) >> shift_;
  }
};

// Buffers of merge_tokens(), kept to save allocations. Not shared by threads.
struct BpeMergeScratch {
  std::vector<BpeMerge> pairs;
  std::vector<int32_t> previous;
  std::vector<int32_t> next;
  std::vector<uint64_t> heap;
};

// Merges `tokens` until no adjacent pair merges: always the pair of the lowest
// rank, and of several the leftmost. Time O(n log n) for n tokens. At most
// INT32_MAX tokens.
void merge_tokens(
    const BpeMergeTable& table,
    std::vector<int32_t>& tokens,
    BpeMergeScratch& scratch);

}  // namespace brigade
