#include "brigade/data/packing_plan.h"

#include <numeric>
#include <set>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// The sequences that have room, by how much.
class OpenSequences {
 public:
  explicit OpenSequences(uint64_t most_room) : by_room_(most_room + 1) {}

  // One with the least room that is enough, or a new one of all room.
  uint64_t take(uint64_t length) {
    const auto room = rooms_.lower_bound(length);
    if (room == rooms_.end()) {
      put(count_, by_room_.size() - 1 - length);
      return count_++;
    }
    std::vector<uint64_t>& fitting = by_room_[*room];
    const uint64_t sequence = fitting.back();
    const uint64_t left = *room - length;
    fitting.pop_back();
    if (fitting.empty())
      rooms_.erase(room);
    put(sequence, left);
    return sequence;
  }
  uint64_t count() const { return count_; }

 private:
  void put(uint64_t sequence, uint64_t room) {
    if (room == 0)
      return;
    if (by_room_[room].empty())
      rooms_.insert(room);
    by_room_[room].push_back(sequence);
  }

  std::vector<std::vector<uint64_t>> by_room_;
  std::set<uint64_t> rooms_;  // those of which there are sequences
  uint64_t count_ = 0;
};

}  // namespace

PackingPlan pack_best_fit(std::span<const uint64_t> counts) {
  BRIGADE_ASSERT(counts.size() > 1 && counts[0] == 0);
  const uint64_t pieces =
      std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  OpenSequences open(counts.size() - 1);
  std::vector<uint64_t> sequence_of;
  sequence_of.reserve(pieces);
  for (uint64_t length = counts.size() - 1; length > 0; --length) {
    for (uint64_t i = 0; i < counts[length]; ++i)
      sequence_of.push_back(open.take(length));
  }
  // By sequence, in each the longest first.
  PackingPlan plan;
  plan.begins.assign(open.count() + 1, 0);
  for (const uint64_t sequence : sequence_of)
    ++plan.begins[sequence + 1];
  std::partial_sum(plan.begins.begin(), plan.begins.end(), plan.begins.begin());
  std::vector<uint64_t> next = plan.begins;
  plan.pieces.resize(pieces);
  for (uint64_t piece = 0; piece < pieces; ++piece)
    plan.pieces[next[sequence_of[piece]]++] = piece;
  return plan;
}

}  // namespace brigade
