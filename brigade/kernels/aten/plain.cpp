#include "brigade/kernels/aten/plain.h"

#include <cmath>
#include <limits>
#include <vector>

namespace brigade::ops::plain {
namespace {

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
       scored.scale)
          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
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

AttentionGradients attention_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options) {
  const Scored scored = score(q, k, v, options);
  const Tensor shift =
      torch::where(torch::isinf(lse), torch::zeros_like(lse), lse);
  const Tensor weights = torch::exp(scored.scores - shift.unsqueeze(-1));
  const Tensor dout_heads = wide(dout).transpose(1, 2);
  const Tensor dscores =
      weights *
      (torch::matmul(dout_heads, scored.values.transpose(-1, -2)) -
       delta.unsqueeze(-1)) *
      scored.scale;
  const torch::ScalarType dtype = options.out_dtype.value_or(q.scalar_type());
  const auto fold = [&](const Tensor& heads) {
    return heads.transpose(1, 2)
        .unflatten(2, {k.size(2), q.size(2) / k.size(2)})
        .sum(3);
  };
  const auto unrotate = [&](const Tensor& x, const auto& table) {
    return table ? rotate(x, RotaryTable{table->cos, -table->sin}) : x;
  };
  return {
      unrotate(
          torch::matmul(dscores, scored.keys).transpose(1, 2),
          options.query_rotary)
          .to(dtype),
      unrotate(
          fold(torch::matmul(dscores.transpose(-1, -2), scored.queries)),
          options.rotary_of_keys())
          .to(dtype),
      fold(torch::matmul(weights.transpose(-1, -2), dout_heads)).to(dtype)};
}

void merge_attention(AttentionResult whole, const AttentionResult& part) {
  const Tensor lse = torch::logaddexp(whole.lse, part.lse);
  // Not a number where neither sees a key: -infinity - -infinity.
  const Tensor share = torch::exp(part.lse - lse).nan_to_num_(0.0);
  // [B, H, Tq] -> [B, Tq, H, 1]
  whole.out.lerp_(part.out, share.transpose(1, 2).unsqueeze(-1));
  whole.lse.copy_(lse);
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

void adamw_step(
    const AdamWStep& step,
    Tensor main_grad,
    Tensor exp_avg,
    Tensor exp_avg_sq,
    Tensor weight,
    Tensor master_low,
    AfterRead after_read) {
  const torch::NoGradGuard no_grad;
  const Tensor master =
      master_low.defined() ? join_master(weight, master_low) : weight;
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, t);
  const double correction2 = 1 - std::pow(step.beta2, t);
  const Tensor g = main_grad * step.grad_scale;
  master.mul_(1 - step.lr * step.weight_decay);
  exp_avg.mul_(step.beta1).add_(g, 1 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(g, g, 1 - step.beta2);
  const Tensor denominator =
      (exp_avg_sq.sqrt() / std::sqrt(correction2)).add_(step.eps);
  master.addcdiv_(exp_avg, denominator, -step.lr / correction1);
  if (master_low.defined())
    split_master(master, weight, master_low);
  if (after_read == AfterRead::kZero)
    main_grad.zero_();
}

Tensor join_master(const Tensor& weight, const Tensor& low) {
  const Tensor upper = weight.view(torch::kShort).to(torch::kInt);
  return (upper.bitwise_left_shift(16) + low.to(torch::kInt))
      .view(torch::kFloat);
}

void split_master(const Tensor& master, Tensor weight, Tensor low) {
  constexpr int kNan = 0x7fc00000;
  const Tensor bits =
      master.view(torch::kInt).masked_fill(master.isnan(), kNan);
  weight.view(torch::kShort)
      .copy_((bits + 0x8000).bitwise_right_shift(16).to(torch::kShort));
  low.copy_(bits.to(torch::kShort));
}

double sum_of_squares(const Tensor& values) {
  return values.to(torch::kDouble).square().sum().item<double>();
}

}  // namespace brigade::ops::plain
