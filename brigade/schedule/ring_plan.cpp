#include "brigade/schedule/ring_plan.h"

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

RingStep plan_step(const RingPlanOptions& options, int rank, int source) {
  const auto chunks_of = [&](int owner) {
    return sequence_chunks(options.sequence_tokens, options.ring_size, owner);
  };
  const std::vector<TokenRange> theirs = chunks_of(source);
  RingStep planned;
  planned.source = source;
  int64_t query = 0;
  for (const TokenRange& queries : chunks_of(rank)) {
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
  return planned;
}

}  // namespace

std::vector<RingStep> plan_ring(const RingPlanOptions& options) {
  std::vector<RingStep> steps;
  for (int step = 0; step < options.ring_size; ++step) {
    const int source =
        (options.ring_rank - step + options.ring_size) % options.ring_size;
    steps.push_back(plan_step(options, options.ring_rank, source));
  }
  return steps;
}

TokenRange travelling_tokens(const RingPlanOptions& options, int owner) {
  const int64_t whole = options.sequence_tokens / options.ring_size;
  TokenRange seen;
  // The neighbours first: most blocks are seen whole by one of them.
  for (int apart = 1; apart < options.ring_size && seen.size() < whole;
       ++apart) {
    const int rank = (owner + options.ring_size +
                      (apart % 2 == 1 ? -1 : 1) * (apart + 1) / 2) %
                     options.ring_size;
    const TokenRange keys = plan_step(options, rank, owner).keys;
    if (keys.size() > 0)
      widen(seen, keys.begin, keys.end);
  }
  return seen;
}

}  // namespace brigade
