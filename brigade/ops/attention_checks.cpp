#include "brigade/ops/attention_checks.h"

#include "brigade/ops/describe.h"

namespace brigade::ops {
namespace {

constexpr const char* kCheckedOp = "attention";
constexpr int64_t kMaxHeadDim = 256;

void check_positions(
    const char* whose,
    const std::vector<PositionRange>& ranges,
    int64_t numel) {
  if (ranges.empty())
    return;
  int64_t total = 0;
  int64_t end = ranges.front().begin;
  for (const PositionRange& range : ranges) {
    require(
        range.numel >= 0 && range.begin >= end,
        kCheckedOp,
        "{} positions must ascend without overlap, but a range begins at {} "
        "after one that ends at {}",
        whose,
        range.begin,
        end);
    end = range.begin + range.numel;
    total += range.numel;
  }
  require(
      total == numel,
      kCheckedOp,
      "{} positions name {} tokens, but there are {}",
      whose,
      total,
      numel);
}

void check_table(
    const char* whose,
    const std::optional<RotaryTable>& table,
    const Tensor& x) {
  require(
      !table || (table->cos.dim() == 2 && table->cos.size(0) == x.size(1) &&
                 2 * table->cos.size(1) == x.size(3) &&
                 table->sin.sizes() == table->cos.sizes()),
      kCheckedOp,
      "the {} rotary table is {}, but {} is {}",
      whose,
      table ? describe(table->cos) : Description(),
      whose,
      describe(x));
}

void check_operands(const AttentionOperands& operands) {
  const auto& [q, k, v] = operands;
  require(
      q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() &&
          q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 &&
          q.size(2) % k.size(2) == 0,
      kCheckedOp,
      "q {}, k {} and v {} do not fit: expected [B, Tq, H, D] and twice "
      "[B, Tk, Hkv, D] with H a multiple of Hkv",
      describe(q),
      describe(k),
      describe(v));
  require(
      q.size(3) >= 1 && q.size(3) <= kMaxHeadDim,
      kCheckedOp,
      "head size {} is not in [1, {}]",
      q.size(3),
      kMaxHeadDim);
  require(
      q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type(),
      kCheckedOp,
      "q {}, k {} and v {} differ in dtype",
      describe(q),
      describe(k),
      describe(v));
}

void check_mask(const Tensor& q, const AttentionOptions& options) {
  require(
      options.causal ||
          (!options.sliding_window && !options.document_starts.defined()),
      kCheckedOp,
      "a sliding window and document starts need causal attention");
  require(
      !options.sliding_window || *options.sliding_window > 0,
      kCheckedOp,
      "the sliding window must be positive, but is {}",
      options.sliding_window.value_or(0));
  const Tensor& starts = options.document_starts;
  require(
      !starts.defined() ||
          (starts.scalar_type() == torch::kLong && starts.dim() == 2 &&
           starts.size(0) == q.size(0) && starts.size(1) == q.size(1)),
      kCheckedOp,
      "document_starts must be int64 [{}, {}], but is {}",
      q.size(0),
      q.size(1),
      describe(starts));
  require(
      !options.logit_soft_cap || *options.logit_soft_cap > 0,
      kCheckedOp,
      "the soft cap of the scores must be positive, but is {}",
      options.logit_soft_cap.value_or(0));
}

}  // namespace

void check_attention(
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const auto& [q, k, v] = operands;
  check_operands(operands);
  check_mask(q, options);
  check_positions("query", options.query_positions, q.size(1));
  check_positions("key", options.key_positions, k.size(1));
  check_table("query", options.query_rotary, q);
  check_table("key", options.rotary_of_keys(), k);
}

}  // namespace brigade::ops
