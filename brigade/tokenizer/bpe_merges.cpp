#include "brigade/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// Up to this many tokens, scanning all pairs beats a heap.
constexpr size_t kScanTokens = 48;

void merge_by_scan(
    const BpeMergeTable& table,
    std::vector<int32_t>& tokens,
    std::vector<BpeMerge>& pairs) {
  size_t count = tokens.size();
  pairs.resize(count - 1);
  for (size_t i = 0; i + 1 < count; ++i)
    pairs[i] = table.find(tokens[i], tokens[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank)
        best = i;
    }
    if (pairs[best].rank == BpeMerge::kNoRank)
      break;
    tokens[best] = pairs[best].id;
    const auto gap = static_cast<std::ptrdiff_t>(best);
    const auto end = static_cast<std::ptrdiff_t>(count);
    std::copy(
        tokens.begin() + gap + 2,
        tokens.begin() + end,
        tokens.begin() + gap + 1);
    if (best + 2 < count)
      std::copy(
          pairs.begin() + gap + 1,
          pairs.begin() + end - 1,
          pairs.begin() + gap);
    --count;
    if (best + 1 < count)
      pairs[best] = table.find(tokens[best], tokens[best + 1]);
    if (best > 0)
      pairs[best - 1] = table.find(tokens[best - 1], tokens[best]);
  }
  tokens.resize(count);
}

// A linked list of tokens and a heap of (rank, position). An entry whose pair
// has changed since is recognised by its rank: ranks are unique to pairs.
class HeapMerge {
 public:
  HeapMerge(
      const BpeMergeTable& table,
      std::vector<int32_t>& tokens,
      BpeMergeScratch& scratch)
      : table_(table),
        tokens_(tokens),
        previous_(scratch.previous),
        next_(scratch.next),
        heap_(scratch.heap) {}

  void run() {
    const auto count = static_cast<int32_t>(tokens_.size());
    previous_.resize(tokens_.size());
    next_.resize(tokens_.size());
    heap_.clear();
    for (int32_t i = 0; i < count; ++i) {
      previous_[i] = i - 1;
      next_[i] = i + 1 < count ? i + 1 : kNone;
      if (i + 1 < count) {
        const BpeMerge merge = table_.find(tokens_[i], tokens_[i + 1]);
        if (merge.rank != BpeMerge::kNoRank)
          heap_.push_back(entry(merge.rank, i));
      }
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t top = heap_.back();
      heap_.pop_back();
      apply(static_cast<uint32_t>(top >> 32), static_cast<int32_t>(top));
    }
    size_t kept = 0;
    for (int32_t i = 0; i != kNone; i = next_[i])
      tokens_[kept++] = tokens_[i];
    tokens_.resize(kept);
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRemoved = -1;  // as a token

  const BpeMergeTable& table_;
  std::vector<int32_t>& tokens_;
  std::vector<int32_t>& previous_;
  std::vector<int32_t>& next_;
  std::vector<uint64_t>& heap_;

  static uint64_t entry(uint32_t rank, int32_t position) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(position);
  }

  void apply(uint32_t rank, int32_t left) {
    if (tokens_[left] == kRemoved || next_[left] == kNone)
      return;
    const int32_t right = next_[left];
    const BpeMerge merge = table_.find(tokens_[left], tokens_[right]);
    if (merge.rank != rank)
      return;
    tokens_[left] = merge.id;
    tokens_[right] = kRemoved;
    next_[left] = next_[right];
    if (next_[left] != kNone) {
      previous_[next_[left]] = left;
      push(left);
    }
    if (previous_[left] != kNone)
      push(previous_[left]);
  }

  void push(int32_t left) {
    const BpeMerge merge = table_.find(tokens_[left], tokens_[next_[left]]);
    if (merge.rank == BpeMerge::kNoRank)
      return;
    heap_.push_back(entry(merge.rank, left));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
};

}  // namespace

BpeMergeTable::BpeMergeTable(size_t count) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * count));
  slots_.resize(capacity);
  mask_ = capacity - 1;
  shift_ = 64 - std::countr_zero(capacity);
}

void BpeMergeTable::set(int32_t left, int32_t right, BpeMerge merge) {
  const uint64_t wanted = key(left, right);
  size_t at = slot(wanted);
  while (slots_[at].key != wanted && slots_[at].key != kEmpty)
    at = (at + 1) & mask_;
  slots_[at] = {.key = wanted, .merge = merge};
}

void merge_tokens(
    const BpeMergeTable& table,
    std::vector<int32_t>& tokens,
    BpeMergeScratch& scratch) {
  BRIGADE_ASSERT(tokens.size() <= INT32_MAX, "{} tokens", tokens.size());
  if (tokens.size() < 2)
    return;
  if (tokens.size() <= kScanTokens)
    merge_by_scan(table, tokens, scratch.pairs);
  else
    HeapMerge(table, tokens, scratch).run();
}

}  // namespace brigade
