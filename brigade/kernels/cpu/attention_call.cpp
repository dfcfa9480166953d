#include "brigade/kernels/cpu/attention_call.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "brigade/ops/describe.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "attention";
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
        kOp,
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
      kOp,
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
      kOp,
      "the {} rotary table is {}, but {} is {}",
      whose,
      table ? describe(table->cos) : Description(),
      whose,
      describe(x));
}

std::vector<int64_t> positions_of(
    const std::vector<PositionRange>& ranges,
    int64_t numel) {
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(numel));
  if (ranges.empty()) {
    positions.resize(static_cast<size_t>(numel));
    std::iota(positions.begin(), positions.end(), 0);
  }
  for (const PositionRange& range : ranges) {
    for (int64_t i = 0; i < range.numel; ++i)
      positions.push_back(range.begin + i);
  }
  return positions;
}

// The mask as the kernels take it: positions of keys ascend, so that what a
// query sees is a run of keys [first, end).
struct SeenKeys {
  Tensor first;  // int32 [1 or B, Tq]
  Tensor end;
};

SeenKeys
seen_keys(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  const int64_t tokens = q.size(1);
  const auto queries = positions_of(options.query_positions, tokens);
  const auto keys = positions_of(options.key_positions, k.size(1));
  const Tensor starts = options.document_starts.defined()
                            ? options.document_starts.contiguous()
                            : Tensor();
  const int64_t rows = starts.defined() ? q.size(0) : 1;
  const auto type = torch::dtype(torch::kInt);
  SeenKeys seen{
      at::empty({rows, tokens}, type), at::empty({rows, tokens}, type)};
  auto* first = data<int32_t>(seen.first);
  auto* end = data<int32_t>(seen.end);
  const auto count_before = [&](int64_t position) {
    return static_cast<int32_t>(
        std::lower_bound(keys.begin(), keys.end(), position) - keys.begin());
  };
  for (int64_t i = 0; i < rows * tokens; ++i) {
    const int64_t position = queries[static_cast<size_t>(i % tokens)];
    int64_t lowest = std::numeric_limits<int64_t>::min();
    if (options.sliding_window)
      lowest = position - *options.sliding_window + 1;
    if (starts.defined())
      lowest = std::max(lowest, data<int64_t>(starts)[i]);
    first[i] = count_before(lowest);
    end[i] = options.causal ? count_before(position + 1)
                            : static_cast<int32_t>(keys.size());
  }
  return seen;
}

// The kernels' view of a call; holds what its pointers point at.
struct Prepared {
  AttentionShape shape;
  SeenKeys seen;
  std::vector<Tensor> tables;

  Prepared(const Tensor& q, const Tensor& k, const AttentionOptions& options)
      : seen(seen_keys(q, k, options)) {
    const auto rotation = [&](const std::optional<RotaryTable>& table) {
      if (!table)
        return Rotation{};
      tables.push_back(table->cos.contiguous());
      tables.push_back(table->sin.contiguous());
      return Rotation{
          data<float>(tables[tables.size() - 2]), data<float>(tables.back())};
    };
    shape = {
        .batch = q.size(0),
        .query_tokens = q.size(1),
        .key_tokens = k.size(1),
        .heads = q.size(2),
        .key_heads = k.size(2),
        .head_dim = q.size(3),
        .scale = static_cast<float>(options.scale.value_or(
            1.0 / std::sqrt(static_cast<double>(q.size(3))))),
        .query_rotation = rotation(options.query_rotary),
        .key_rotation = rotation(options.rotary_of_keys()),
        .first_key = data<int32_t>(seen.first),
        .end_key = data<int32_t>(seen.end),
        .seen_batch_stride = seen.first.size(0) > 1 ? q.size(1) : 0};
  }

  int64_t groups() const { return shape.batch * shape.key_heads; }
};

// A gradient as the kernels take it: in the operands' type or in float32.
template <typename T>
void set_gradient(const Tensor& x, Heads<T>& narrow, Heads<float>& wide) {
  if (is_wide(x))
    wide = heads_of<float>(x);
  else
    narrow = heads_of<T>(x);
}

}  // namespace

void check_attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  require(
      q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() &&
          q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 &&
          q.size(2) % k.size(2) == 0,
      kOp,
      "q {}, k {} and v {} do not fit: expected [B, Tq, H, D] and twice "
      "[B, Tk, Hkv, D] with H a multiple of Hkv",
      describe(q),
      describe(k),
      describe(v));
  require(
      q.size(3) >= 1 && q.size(3) <= kMaxHeadDim,
      kOp,
      "head size {} is not in [1, {}]",
      q.size(3),
      kMaxHeadDim);
  require(
      q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type(),
      kOp,
      "q {}, k {} and v {} differ in dtype",
      describe(q),
      describe(k),
      describe(v));
  require(
      options.causal ||
          (!options.sliding_window && !options.document_starts.defined()),
      kOp,
      "a sliding window and document starts need causal attention");
  require(
      !options.sliding_window || *options.sliding_window > 0,
      kOp,
      "the sliding window must be positive, but is {}",
      options.sliding_window.value_or(0));
  const Tensor& starts = options.document_starts;
  require(
      !starts.defined() ||
          (starts.scalar_type() == torch::kLong && starts.dim() == 2 &&
           starts.size(0) == q.size(0) && starts.size(1) == q.size(1)),
      kOp,
      "document_starts must be int64 [{}, {}], but is {}",
      q.size(0),
      q.size(1),
      describe(starts));
  check_positions("query", options.query_positions, q.size(1));
  check_positions("key", options.key_positions, k.size(1));
  check_table("query", options.query_rotary, q);
  check_table("key", options.rotary_of_keys(), k);
}

bool attention_kernel_fits(
    const Tensor& q,
    const Tensor& k,
    const AttentionOptions& options) {
  const auto out_dtype = options.out_dtype.value_or(q.scalar_type());
  return has_kernel(q) && q.numel() > 0 && k.numel() > 0 &&
         (out_dtype == q.scalar_type() || out_dtype == torch::kFloat);
}

void run_attention_forward(
    const AttentionResult& result,
    const AttentionResult& so_far,
    const Tensor& q_in,
    const Tensor& k_in,
    const Tensor& v_in,
    const AttentionOptions& options) {
  const Tensor q = dense(q_in);
  const Tensor k = dense(k_in);
  const Tensor v = dense(v_in);
  const Prepared prepared(q, k, options);
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    AttentionForward<T> kernel{
        .shape = prepared.shape,
        .q = heads_of<const T>(q),
        .k = heads_of<const T>(k),
        .v = heads_of<const T>(v),
        .lse = data<float>(result.lse),
        .lse_batch_stride = result.lse.stride(0),
        .lse_head_stride = result.lse.stride(1)};
    if (so_far.out.defined())
      kernel.so_far = heads_of<const float>(so_far.out);
    if (is_wide(result.out))
      kernel.wide_out = heads_of<float>(result.out);
    else
      kernel.out = heads_of<T>(result.out);
    at::parallel_for(0, prepared.groups(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        ops::attention_forward(kernel, group);
    });
  });
}

void run_attention_backward(
    const AttentionGradients& result,
    const QueryGradientPart& dq_so_far,
    const Tensor& dout_in,
    const Tensor& q_in,
    const Tensor& k_in,
    const Tensor& v_in,
    const Tensor& lse_in,
    const Tensor& delta_in,
    const AttentionOptions& options) {
  const Tensor q = dense(q_in);
  const Tensor k = dense(k_in);
  const Tensor v = dense(v_in);
  Tensor dout = dense(dout_in);
  if (dout.scalar_type() != q.scalar_type() && !is_wide(dout))
    dout = dout.to(torch::kFloat);
  const Tensor lse = lse_in.contiguous();
  const Tensor delta = delta_in.contiguous();
  const Prepared prepared(q, k, options);
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    AttentionBackward<T> kernel{
        .shape = prepared.shape,
        .q = heads_of<const T>(q),
        .k = heads_of<const T>(k),
        .v = heads_of<const T>(v),
        .lse = data<float>(lse),
        .delta = data<float>(delta)};
    if (is_wide(dout))
      kernel.wide_dout = heads_of<const float>(dout);
    else
      kernel.dout = heads_of<const T>(dout);
    set_gradient(result.dq, kernel.dq, kernel.wide_dq);
    set_gradient(result.dk, kernel.dk, kernel.wide_dk);
    set_gradient(result.dv, kernel.dv, kernel.wide_dv);
    if (const Tensor& values = dq_so_far.values; values.defined())
      kernel.dq_so_far = {
          heads_of<const float>(values),
          dq_so_far.first_token,
          dq_so_far.first_token + values.size(1)};
    at::parallel_for(0, prepared.groups(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        ops::attention_backward(kernel, group);
    });
  });
}

}  // namespace brigade::ops
