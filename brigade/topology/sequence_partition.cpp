#include "brigade/topology/sequence_partition.h"

#include <fmt/format.h>

#include "brigade/base/check.h"

namespace brigade {

void validate_sequence_partition(
    int64_t sequence_tokens,
    int cp,
    std::vector<std::string>& problems) {
  if (sequence_tokens < 1) {
    problems.push_back(fmt::format(
        "[sequence_partition] a sequence of {} tokens, but at least 1 is "
        "needed",
        sequence_tokens));
    return;
  }
  const int64_t unit = 2 * static_cast<int64_t>(cp);
  if (cp <= 1 || sequence_tokens % unit == 0)
    return;
  const int64_t below = sequence_tokens / unit * unit;
  problems.push_back(fmt::format(
      "[sequence_partition] {} tokens do not split into the 2 * cp = {} equal "
      "chunks of cp {}; nearest: {}{}",
      sequence_tokens,
      unit,
      cp,
      below > 0 ? fmt::format("{} or ", below) : "",
      below + unit));
}

std::vector<TokenRange>
sequence_chunks(int64_t sequence_tokens, int cp, int cp_rank) {
  BRIGADE_ASSERT(cp_rank >= 0 && cp_rank < cp, "cp rank {} of {}", cp_rank, cp);
  if (cp == 1)
    return {{0, sequence_tokens}};
  BRIGADE_ASSERT(
      sequence_tokens % (2 * cp) == 0, "{} tokens, cp {}", sequence_tokens, cp);
  const int64_t chunk_tokens = sequence_tokens / (2 * cp);
  const int64_t early = cp_rank;
  const int64_t late = 2 * cp - 1 - cp_rank;
  return {
      {early * chunk_tokens, (early + 1) * chunk_tokens},
      {late * chunk_tokens, (late + 1) * chunk_tokens}};
}

std::vector<int64_t>
token_positions(int64_t sequence_tokens, int cp, int cp_rank) {
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(sequence_tokens / cp));
  for (const TokenRange& chunk :
       sequence_chunks(sequence_tokens, cp, cp_rank)) {
    for (int64_t token = chunk.begin; token < chunk.end; ++token)
      positions.push_back(token);
  }
  return positions;
}

void validate_sequence_partition(
    int64_t sequence_tokens,
    const ParallelDims& dims,
    std::vector<std::string>& problems) {
  validate_sequence_partition(sequence_tokens, dims.sequence_parts(), problems);
}

int64_t tokens_per_rank(int64_t sequence_tokens, const ParallelDims& dims) {
  return sequence_tokens / dims.sequence_parts();
}

std::vector<int64_t> token_positions(
    int64_t sequence_tokens,
    const ParallelDims& dims,
    const Coordinate& at) {
  return token_positions(
      sequence_tokens, dims.sequence_parts(), dims.place(kSequenceAxes, at));
}

}  // namespace brigade
