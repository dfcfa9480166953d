// Which calls of a flash kernel make up one attention. Such a kernel knows no
// positions: its queries see all keys, or, of as many queries as keys, each
// query the keys up to its own. PURE.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/ops/attention.h"

namespace brigade::ops {

// Tokens first, first + 1, ... of a call's operands, not their positions.
struct TokenSpan {
  int64_t first = 0;
  int64_t numel = 0;
  bool operator==(const TokenSpan&) const = default;
};

struct FlashPiece {
  TokenSpan queries;
  TokenSpan keys;
  // Query i sees the keys 0 to i of the piece; otherwise every query sees all.
  bool is_diagonal = false;
  bool operator==(const FlashPiece&) const = default;
};

// Every pair of a query and a key that it sees is in one piece. The options'
// positions and `causal` count; a window and documents do not.
std::vector<FlashPiece>
plan_flash(const AttentionOptions& options, int64_t queries, int64_t keys);

}  // namespace brigade::ops
