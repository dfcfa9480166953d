// A call of attention as the kernels take it: the mask as runs of keys, tensors
// as heads.

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"

namespace brigade::ops {
namespace {

constexpr int64_t kTokensPerTask = 64;

template <typename T>
Heads<T> heads_of(const Tensor& x) {
  using Element = std::remove_const_t<T>;
  return {data<Element>(x), x.stride(0), x.stride(1), x.stride(2)};
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
        .scale = static_cast<float>(options.scale_of(q)),
        .soft_cap = static_cast<float>(options.logit_soft_cap.value_or(0.0)),
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

// Whether the kernels can write to such a result of operands like q.
bool is_written_directly(const Tensor& result, const Tensor& q) {
  return (result.scalar_type() == q.scalar_type() || is_wide(result)) &&
         (result.size(3) == 1 || result.stride(3) == 1);
}

// The result itself, or float32 memory in its stead.
Tensor writable(const Tensor& result, const Tensor& q) {
  return is_written_directly(result, q)
             ? result
             : at::empty(result.sizes(), result.options().dtype(torch::kFloat));
}

void copy_back(const Tensor& result, const Tensor& written) {
  if (!written.is_same(result))
    Tensor(result).copy_(written);
}

template <typename T>
AttentionBackward<T> backward_kernel(
    const AttentionBackwardInputs& inputs,
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const AttentionShape& shape) {
  const auto& [q, k, v] = inputs.operands;
  AttentionBackward<T> kernel{
      .shape = shape,
      .q = heads_of<const T>(q),
      .k = heads_of<const T>(k),
      .v = heads_of<const T>(v),
      .lse = data<float>(inputs.lse),
      .delta = data<float>(inputs.delta)};
  if (is_wide(inputs.dout))
    kernel.wide_dout = heads_of<const float>(inputs.dout);
  else
    kernel.dout = heads_of<const T>(inputs.dout);
  set_gradient(into.dq, kernel.dq, kernel.wide_dq);
  set_gradient(into.dk, kernel.dk, kernel.wide_dk);
  set_gradient(into.dv, kernel.dv, kernel.wide_dv);
  if (const Tensor& values = dq_so_far.values; values.defined())
    kernel.dq_so_far = {
        heads_of<const float>(values),
        dq_so_far.first_token,
        dq_so_far.first_token + values.size(1)};
  return kernel;
}

}  // namespace

void CpuKernels::attention(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options) const {
  const Tensor q = dense(operands.q);
  const Tensor k = dense(operands.k);
  const Tensor v = dense(operands.v);
  const Tensor out = writable(into.out, q);
  const Prepared prepared(q, k, options);
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    AttentionForward<T> kernel{
        .shape = prepared.shape,
        .q = heads_of<const T>(q),
        .k = heads_of<const T>(k),
        .v = heads_of<const T>(v),
        .lse = data<float>(into.lse),
        .lse_batch_stride = into.lse.stride(0),
        .lse_head_stride = into.lse.stride(1)};
    if (so_far.out.defined())
      kernel.so_far = heads_of<const float>(so_far.out);
    if (is_wide(out))
      kernel.wide_out = heads_of<float>(out);
    else
      kernel.out = heads_of<T>(out);
    at::parallel_for(0, prepared.groups(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        ops::attention_forward(kernel, group);
    });
  });
  copy_back(into.out, out);
}

void CpuKernels::attention_backward(
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) const {
  AttentionBackwardInputs given{
      .operands =
          {dense(inputs.operands.q),
           dense(inputs.operands.k),
           dense(inputs.operands.v)},
      .dout = dense(inputs.dout),
      .lse = inputs.lse.contiguous(),
      .delta = delta_of(inputs, options.kernels).contiguous()};
  const Tensor& q = given.operands.q;
  if (given.dout.scalar_type() != q.scalar_type() && !is_wide(given.dout))
    given.dout = given.dout.to(torch::kFloat);
  const AttentionGradients written{
      writable(into.dq, q), writable(into.dk, q), writable(into.dv, q)};
  const Prepared prepared(q, given.operands.k, options);
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    const auto kernel =
        backward_kernel<T>(given, written, dq_so_far, prepared.shape);
    at::parallel_for(0, prepared.groups(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group)
        ops::attention_backward(kernel, group);
    });
  });
  copy_back(into.dq, written.dq);
  copy_back(into.dk, written.dk);
  copy_back(into.dv, written.dv);
}

Tensor CpuKernels::attention_delta(const Tensor& dout, const Tensor& out)
    const {
  const Tensor dense_dout = dense(dout);
  const Tensor dense_out = dense(out);
  const int64_t tokens = out.size(1);
  const Tensor delta = torch::empty(
      {out.size(0), out.size(2), tokens}, out.options().dtype(torch::kFloat));
  with_element_type(out, [&](auto type) {
    using T = decltype(type);
    const AttentionDelta<T> call{
        heads_of<const T>(dense_dout),
        heads_of<const T>(dense_out),
        data<float>(delta),
        tokens,
        out.size(2),
        out.size(3)};
    run_in_tasks(
        out.size(0) * tokens, kTokensPerTask, ops::attention_delta, call);
  });
  return delta;
}

void CpuKernels::add_partial_gradient(
    Tensor sum,
    const Tensor& other,
    const std::optional<RotaryTable>& table) const {
  const Tensor addend = dense(other);
  const Tensor cos = table ? table->cos.contiguous() : Tensor();
  const Tensor sin = table ? table->sin.contiguous() : Tensor();
  with_element_type(sum, [&](auto element) {
    using T = decltype(element);
    AddPartialGradient<T> kernel{
        .sum = heads_of<T>(sum),
        .other = heads_of<const T>(addend),
        .rotation = {},
        .tokens = sum.size(1),
        .heads = sum.size(2),
        .head_dim = sum.size(3)};
    if (table)
      kernel.rotation = {data<float>(cos), data<float>(sin)};
    run_in_tasks(
        sum.size(0) * sum.size(1),
        kTokensPerTask,
        ops::add_partial_gradient,
        kernel);
  });
}

}  // namespace brigade::ops
