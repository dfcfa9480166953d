#include "brigade/context_parallel/ring_plan.h"

#include <algorithm>

namespace brigade {
namespace {

bool sees(
    const TokenRange& queries,
    const TokenRange& keys,
    const RingPlanOptions& options) {
  if (options.causal && keys.begin > queries.end - 1)
    return false;
  // The first query sees furthest back.
  return !options.sliding_window ||
         keys.end - 1 > queries.begin - *options.sliding_window;
}

void widen(TokenRange& range, int64_t begin, int64_t end) {
  if (range.size() == 0)
    range = {begin, end};
  range = {std::min(range.begin, begin), std::max(range.end, end)};
}

}  // namespace

std::vector<RingStep> plan_ring(const RingPlanOptions& options) {
  const auto chunks_of = [&](int rank) {
    return sequence_chunks(options.sequence_tokens, options.ring_size, rank);
  };
  const std::vector<TokenRange> mine = chunks_of(options.ring_rank);
  std::vector<RingStep> steps;
  for (int step = 0; step < options.ring_size; ++step) {
    RingStep planned;
    planned.source =
        (options.ring_rank - step + options.ring_size) % options.ring_size;
    const std::vector<TokenRange> theirs = chunks_of(planned.source);
    int64_t query = 0;
    for (const TokenRange& queries : mine) {
      int64_t key = 0;
      for (const TokenRange& keys : theirs) {
        if (sees(queries, keys, options)) {
          widen(planned.queries, query, query + queries.size());
          widen(planned.keys, key, key + keys.size());
        }
        key += keys.size();
      }
      query += queries.size();
    }
    steps.push_back(planned);
  }
  return steps;
}

}  // namespace brigade
