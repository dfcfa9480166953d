#include "brigade/kernels/aten/flash_plan.h"

#include <algorithm>

namespace brigade::ops {
namespace {

std::vector<PositionRange> ranges_of(
    const std::vector<PositionRange>& positions,
    int64_t numel) {
  if (positions.empty())
    return {{0, numel}};
  return positions;
}

bool follows(const TokenSpan& a, const TokenSpan& b) {
  return a.first + a.numel == b.first;
}

// Fewer and larger calls: one piece of two that lie side by side.
void append(std::vector<FlashPiece>& pieces, const FlashPiece& piece) {
  if (!pieces.empty() && !pieces.back().is_diagonal && !piece.is_diagonal) {
    FlashPiece& last = pieces.back();
    if (last.queries == piece.queries && follows(last.keys, piece.keys)) {
      last.keys.numel += piece.keys.numel;
      return;
    }
    if (last.keys == piece.keys && follows(last.queries, piece.queries)) {
      last.queries.numel += piece.queries.numel;
      return;
    }
  }
  pieces.push_back(piece);
}

// Positions of queries against positions of keys, with their first tokens.
void append_causal(
    std::vector<FlashPiece>& pieces,
    const PositionRange& q,
    int64_t first_query,
    const PositionRange& k,
    int64_t first_key) {
  const int64_t q_end = q.begin + q.numel;
  const int64_t k_end = k.begin + k.numel;
  // Keys before all queries.
  const int64_t before = std::min(k_end, q.begin) - k.begin;
  if (before > 0)
    append(pieces, {{first_query, q.numel}, {first_key, before}, false});
  // Positions of both, and the queries after them.
  const int64_t low = std::max(q.begin, k.begin);
  const int64_t high = std::min(q_end, k_end);
  if (low >= high)
    return;
  const TokenSpan keys{first_key + low - k.begin, high - low};
  append(pieces, {{first_query + low - q.begin, high - low}, keys, true});
  if (high < q_end)
    append(pieces, {{first_query + high - q.begin, q_end - high}, keys, false});
}

}  // namespace

std::vector<FlashPiece>
plan_flash(const AttentionOptions& options, int64_t queries, int64_t keys) {
  std::vector<FlashPiece> pieces;
  if (queries == 0 || keys == 0)
    return pieces;
  if (!options.causal)
    return {{{0, queries}, {0, keys}, false}};
  int64_t first_query = 0;
  for (const PositionRange& q : ranges_of(options.query_positions, queries)) {
    int64_t first_key = 0;
    for (const PositionRange& k : ranges_of(options.key_positions, keys)) {
      append_causal(pieces, q, first_query, k, first_key);
      first_key += k.numel;
    }
    first_query += q.numel;
  }
  return pieces;
}

}  // namespace brigade::ops
