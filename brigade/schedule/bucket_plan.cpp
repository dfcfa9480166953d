#include "brigade/schedule/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One dtype and group: the bucket being filled, where in the order its last
// parameter stands, and the bytes of the parameters that are in no bucket yet.
struct OpenBucket {
  PlannedBucket bucket;
  size_t last_position = 0;
  int64_t capacity_bytes = 0;
  int64_t bytes_left = 0;
};

bool is_alone(const BucketParam& param) {
  return param.sparse_row_numel > 0 || param.has_own_bucket;
}

}  // namespace

std::vector<int> initial_order(BucketOrder order, int params) {
  std::vector<int> result(static_cast<size_t>(params));
  std::iota(result.begin(), result.end(), 0);
  if (order != BucketOrder::kRegistration)
    std::reverse(result.begin(), result.end());
  return result;
}

void align_to_blocks(BucketPlanOptions& options, int64_t block_numel) {
  options.alignment_numel = std::lcm(options.alignment_numel, block_numel);
  options.range_numel = block_numel;
}

BucketPlan plan_buckets(
    std::span<const BucketParam> params,
    std::span<const int> order,
    const BucketPlanOptions& options) {
  BRIGADE_ASSERT(
      order.size() == params.size(),
      "an order of {} for {} parameters",
      order.size(),
      params.size());
  BRIGADE_ASSERT(options.ranks > 0 && options.alignment_numel > 0);
  const int64_t end_multiple =
      std::lcm(options.alignment_numel, options.ranks * options.range_numel);

  std::vector<OpenBucket> closed;
  std::map<std::pair<std::string, int>, OpenBucket> open;
  for (const BucketParam& param : params) {
    if (!is_alone(param))
      open[{param.dtype, param.group}].bytes_left +=
          param.numel * param.grad_element_bytes;
  }
  const auto close = [&](OpenBucket& filled) {
    filled.bucket.numel = round_up(filled.bucket.numel, end_multiple);
    closed.push_back(filled);
    filled.bucket = {};
  };
  const auto capacity_now = [&](int64_t bytes_left) {
    const int64_t most =
        closed.empty()
            ? std::min(options.first_bucket_bytes, options.capacity_bytes)
            : options.capacity_bytes;
    return std::min(most, std::max(bytes_left / 2, options.last_bucket_bytes));
  };

  for (size_t position = 0; position < order.size(); ++position) {
    const int index = order[position];
    const BucketParam& param = params[static_cast<size_t>(index)];
    OpenBucket& filling = open[{param.dtype, param.group}];
    PlannedBucket& bucket = filling.bucket;
    int64_t offset = round_up(bucket.numel, options.alignment_numel);
    const int64_t bytes = (offset + param.numel) * param.grad_element_bytes;
    if (!bucket.slots.empty() &&
        (is_alone(param) || bytes > filling.capacity_bytes ||
         bucket.unit != param.unit)) {
      close(filling);
      offset = 0;
    }
    if (bucket.slots.empty())
      filling.capacity_bytes = capacity_now(filling.bytes_left);
    bucket.dtype = param.dtype;
    bucket.unit = param.unit;
    bucket.group = param.group;
    bucket.grad_element_bytes = param.grad_element_bytes;
    bucket.slots.push_back(
        {.param = index, .offset = offset, .numel = param.numel});
    bucket.numel = offset + param.numel;
    filling.last_position = position;
    if (is_alone(param)) {
      bucket.sparse_row_numel = param.sparse_row_numel;
      close(filling);
    } else {
      filling.bytes_left -= param.numel * param.grad_element_bytes;
    }
  }
  for (auto& [kind, filling] : open) {
    if (!filling.bucket.slots.empty())
      close(filling);
  }

  std::ranges::sort(closed, {}, &OpenBucket::last_position);
  BucketPlan plan;
  plan.buckets.reserve(closed.size());
  for (OpenBucket& filled : closed)
    plan.buckets.push_back(std::move(filled.bucket));
  return plan;
}

std::string BucketPlan::table(std::span<const BucketParam> params) const {
  std::string text = fmt::format(
      "{:>6}  {:>9}  {:>12}  {:>6}  {:<10}  {}\n",
      "bucket",
      "MiB",
      "elements",
      "params",
      "dtype",
      "from ... to");
  for (size_t i = 0; i < buckets.size(); ++i) {
    const PlannedBucket& bucket = buckets[i];
    const auto name = [&](const RunPart& slot) {
      return params[static_cast<size_t>(slot.param)].name;
    };
    std::string range = name(bucket.slots.front());
    if (bucket.slots.size() > 1)
      range += " ... " + name(bucket.slots.back());
    text += fmt::format(
        "{:>6}  {:>9.2f}  {:>12}  {:>6}  {:<10}  {}\n",
        i,
        static_cast<double>(bucket.bytes()) / static_cast<double>(MiB),
        bucket.numel,
        bucket.slots.size(),
        bucket.dtype,
        range);
  }
  return text;
}

}  // namespace brigade
