#include "brigade/data/packing_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace brigade {
namespace {

// The lengths of all pieces, longest first, as they are numbered.
std::vector<uint64_t> lengths_of(const std::vector<uint64_t>& counts) {
  std::vector<uint64_t> lengths;
  for (uint64_t length = counts.size() - 1; length > 0; --length)
    lengths.insert(lengths.end(), counts[length], length);
  return lengths;
}

// The naive best fit decreasing: every piece looks at all sequences.
uint64_t sequences_by_search(
    const std::vector<uint64_t>& lengths,
    uint64_t room) {
  std::vector<uint64_t> rooms;
  for (const uint64_t length : lengths) {
    auto best = rooms.end();
    for (auto it = rooms.begin(); it != rooms.end(); ++it) {
      if (*it >= length && (best == rooms.end() || *it < *best))
        best = it;
    }
    if (best == rooms.end())
      best = rooms.insert(rooms.end(), room);
    *best -= length;
  }
  return rooms.size();
}

// Puts each piece into the first sequence that has room, in order.
uint64_t sequences_of_first_fit(
    const std::vector<uint64_t>& lengths,
    uint64_t room) {
  std::vector<uint64_t> rooms;
  for (const uint64_t length : lengths) {
    auto first = std::find_if(rooms.begin(), rooms.end(), [&](uint64_t left) {
      return left >= length;
    });
    if (first == rooms.end())
      first = rooms.insert(rooms.end(), room);
    *first -= length;
  }
  return rooms.size();
}

std::vector<uint64_t> counts_of(
    const std::vector<uint64_t>& lengths,
    uint64_t room) {
  std::vector<uint64_t> counts(room + 1, 0);
  for (const uint64_t length : lengths)
    ++counts[length];
  return counts;
}

void expect_sound(
    const PackingPlan& plan,
    const std::vector<uint64_t>& lengths,
    uint64_t room) {
  std::vector<uint64_t> pieces = plan.pieces;
  std::sort(pieces.begin(), pieces.end());
  std::vector<uint64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), uint64_t{0});
  EXPECT_EQ(pieces, all);
  for (uint64_t s = 0; s < plan.num_sequences(); ++s) {
    uint64_t taken = 0;
    for (const uint64_t piece : plan.pieces_of(s))
      taken += lengths[piece];
    EXPECT_GT(taken, 0U);
    EXPECT_LE(taken, room);
  }
}

TEST(PackingPlan, PutsAPieceWhereTheLeastRoomIsLeft) {
  // Pieces of 7, 6, 3 and 3 in sequences of 10: the first 3 fills up the 7, and
  // the second goes to the 6.
  std::vector<uint64_t> counts(11, 0);
  counts[7] = counts[6] = 1;
  counts[3] = 2;
  const PackingPlan plan = pack_best_fit(counts);
  EXPECT_EQ(plan.begins, (std::vector<uint64_t>{0, 2, 4}));
  EXPECT_EQ(plan.pieces, (std::vector<uint64_t>{0, 2, 1, 3}));
}

TEST(PackingPlan, HasEachPieceOnceAndFillsNoSequenceBeyondItsRoom) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const uint64_t room = 1 + random() % 60;
    std::vector<uint64_t> given(random() % 200);
    for (uint64_t& length : given)
      length = 1 + random() % room;
    const auto counts = counts_of(given, room);
    const auto lengths = lengths_of(counts);
    const PackingPlan plan = pack_best_fit(counts);
    expect_sound(plan, lengths, room);
    EXPECT_EQ(plan.num_sequences(), sequences_by_search(lengths, room));
    EXPECT_LE(plan.num_sequences(), sequences_of_first_fit(given, room));
  }
}

// Lengths like those of conversations: most are short, some long.
TEST(PackingPlan, FillsSequencesOf2048WithDocumentsOf200OnAverage) {
  constexpr uint64_t kRoom = 2048;
  std::mt19937 random(1);
  std::vector<uint64_t> lengths(20000);
  for (uint64_t& length : lengths) {
    const double share = (static_cast<double>(random()) + 0.5) / 4294967296.0;
    length = std::clamp<uint64_t>(
        static_cast<uint64_t>(-200 * std::log(share)), 1, kRoom);
  }
  const uint64_t tokens =
      std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  const PackingPlan plan = pack_best_fit(counts_of(lengths, kRoom));
  // No plan has fewer sequences than this.
  const uint64_t fewest = (tokens + kRoom - 1) / kRoom;
  EXPECT_EQ(plan.num_sequences(), fewest);
  EXPECT_LE(plan.num_sequences(), sequences_of_first_fit(lengths, kRoom));
}

}  // namespace
}  // namespace brigade
