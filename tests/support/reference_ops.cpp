#include "tests/support/reference_ops.h"

#include <cmath>
#include <limits>
#include <vector>

namespace brigade::testing::reference {
namespace {

using ops::PositionRange;

// The dtype in which a result is computed: float32 for bf16, else its own.
Tensor wide(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

Tensor rotate(const Tensor& x, const RotaryTable& table) {
  const auto halves = wide(x).chunk(2, -1);
  const Tensor cos = table.cos.unsqueeze(1).to(halves[0].scalar_type());
  const Tensor sin = table.sin.unsqueeze(1).to(halves[0].scalar_type());
  return torch::cat(
             {halves[0] * cos - halves[1] * sin,
              halves[1] * cos + halves[0] * sin},
             -1)
      .to(x.scalar_type());
}

Tensor positions_of(
    const std::vector<PositionRange>& ranges,
    int64_t numel,
    const torch::Device& device) {
  const auto type = torch::dtype(torch::kLong).device(device);
  if (ranges.empty())
    return torch::arange(numel, type);
  std::vector<Tensor> parts;
  for (const PositionRange& range : ranges)
    parts.push_back(
        torch::arange(range.begin, range.begin + range.numel, type));
  return torch::cat(parts);
}

// Everything in the wide dtype, heads first, keys expanded to the query heads.
struct Scored {
  double scale;
  Tensor queries;  // [B, H, Tq, D]
  Tensor keys;     // [B, H, Tk, D]
  Tensor values;   // [B, H, Tk, D]
  Tensor scores;   // [B, H, Tq, Tk]; -infinity where the mask hides
};

Scored score(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  const auto rotated = [](const Tensor& x, const auto& table) {
    return table ? rotate(wide(x), *table) : wide(x);
  };
  const auto expand = [&](const Tensor& x) {
    return x.repeat_interleave(q.size(2) / x.size(2), 2).transpose(1, 2);
  };
  Scored scored{
      options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3)))),
      rotated(q, options.query_rotary).transpose(1, 2),
      expand(rotated(k, options.rotary_of_keys())),
      expand(wide(v)),
      {}};
  const Tensor hidden = attention_mask(q.size(1), k.size(1), options)
                            .logical_not()
                            .unsqueeze(1)
                            .to(q.device());
  scored.scores =
      (torch::matmul(scored.queries, scored.keys.transpose(-1, -2)) *
       scored.scale);
  if (const auto cap = options.logit_soft_cap)
    scored.scores = torch::tanh(scored.scores / *cap) * *cap;
  scored.scores = scored.scores.masked_fill(
      hidden, -std::numeric_limits<double>::infinity());
  return scored;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor values = wide(x);
  const Tensor scale = torch::rsqrt(values.square().mean(-1, true) + eps);
  return (values * scale * weight).to(x.scalar_type());
}

std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps) {
  const Tensor sum = x + residual;
  return {rms_norm(sum, weight, eps), sum};
}

std::pair<Tensor, Tensor>
rotary(const Tensor& q, const Tensor& k, const RotaryTable& table) {
  return {rotate(q, table), rotate(k, table)};
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  const Tensor x = wide(gate);
  return (x * torch::sigmoid(x) * up).to(gate.scalar_type());
}

Tensor attention_mask(
    int64_t query_numel,
    int64_t key_numel,
    const AttentionOptions& options) {
  const torch::Device device = options.document_starts.defined()
                                   ? options.document_starts.device()
                                   : torch::Device(torch::kCPU);
  const Tensor query =
      positions_of(options.query_positions, query_numel, device)
          .view({1, -1, 1});
  const Tensor key =
      positions_of(options.key_positions, key_numel, device).view({1, 1, -1});
  Tensor mask = torch::ones(
      {1, query_numel, key_numel}, torch::dtype(torch::kBool).device(device));
  if (options.causal)
    mask = mask & (key <= query);
  if (options.sliding_window)
    mask = mask & (key > query - *options.sliding_window);
  if (options.document_starts.defined())
    mask = mask & (key >= options.document_starts.unsqueeze(-1));
  return mask;
}

AttentionResult attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  const Scored scored = score(q, k, v, options);
  // A row that sees nothing has only -infinity: shift it by 0.
  // And no keys at all have no maximum: the sum of none is 0 too.
  const Tensor scores = scored.scores.detach();
  const Tensor top =
      k.size(1) > 0 ? scores.amax(-1, true) : scores.sum(-1, true);
  const Tensor shift =
      torch::where(torch::isinf(top), torch::zeros_like(top), top);
  const Tensor weights = torch::exp(scored.scores - shift);
  const Tensor sums = weights.sum(-1, true);
  const Tensor seen = torch::where(sums == 0, torch::ones_like(sums), sums);
  const Tensor out = torch::matmul(weights / seen, scored.values);
  return {
      out.transpose(1, 2).to(options.out_dtype.value_or(q.scalar_type())),
      (shift + torch::log(sums))
          .squeeze(-1)
          .detach()
          .to(q.scalar_type() == torch::kDouble ? torch::kDouble
                                                : torch::kFloat)};
}

Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    int64_t ignore_index) {
  const Tensor logits = torch::matmul(wide(hidden), wide(weight).t());
  const Tensor losses =
      torch::logsumexp(logits, -1) -
      logits
          .gather(
              -1,
              torch::where(
                  targets == ignore_index, torch::zeros_like(targets), targets)
                  .unsqueeze(-1))
          .squeeze(-1);
  return losses.masked_fill(targets == ignore_index, 0).sum();
}

}  // namespace brigade::testing::reference
