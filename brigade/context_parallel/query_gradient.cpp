#include "brigade/context_parallel/query_gradient.h"

#include <algorithm>
#include <utility>

namespace brigade {

using torch::Tensor;

void clear_outside(const Tensor& x, const TokenRange& range) {
  if (range.begin > 0)
    tokens(x, {0, range.begin}).zero_();
  if (range.end < x.size(1))
    tokens(x, {range.end, x.size(1)}).zero_();
}

QueryGradient::QueryGradient(
    const RingCall& call,
    const Tensor& q,
    torch::ScalarType dtype)
    : options_(q.options().dtype(dtype)), sizes_(q.sizes().vec()) {
  for (int i = 1; i <= call.last_step(); ++i) {
    const RingStep& step = call.step(i);
    if (step.is_hidden())
      continue;
    if (range_.size() == 0)
      range_ = step.queries;
    range_.begin = std::min(range_.begin, step.queries.begin);
    range_.end = std::max(range_.end, step.queries.end);
  }
  sizes_[1] = range_.size();
}

Tensor QueryGradient::take(const TokenRange& queries) {
  if (sum_.defined()) {
    auto sizes = sizes_;
    sizes[1] = queries.size();
    return empty_by_heads(sizes, options_);
  }
  sum_ = empty_by_heads(sizes_, options_);
  is_in_place_ = true;
  clear_outside(sum_, within(queries));
  return tokens(sum_, within(queries));
}

void QueryGradient::give(const Tensor& part, const TokenRange& queries) {
  if (!std::exchange(is_in_place_, false))
    tokens(sum_, within(queries)).add_(part);
}

}  // namespace brigade
