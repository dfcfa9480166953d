// The parts of a step, each op alone at the step's shapes, and the bound
// that its matrix products set.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/step_shapes.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"

namespace brigade::bench {

using torch::Tensor;

inline constexpr int kPartRuns = 5;

// Milliseconds of a linear's three products by oneDNN, n tokens: the bound.
inline double
products_ms(int64_t n, int64_t in, int64_t out, torch::ScalarType dtype) {
  const Tensor x = torch::ones({n, in}, dtype);
  const Tensor w = torch::ones({out, in}, dtype);
  const Tensor y = torch::ones({n, out}, dtype);
  const Tensor dx = torch::ones({n, in}, dtype);
  const Tensor dw = torch::ones({out, in});
  return median_ms(kPartRuns, [&] { ops::product(x, w.t(), y); }) +
         median_ms(kPartRuns, [&] { ops::product(y, w, dx); }) +
         median_ms(kPartRuns, [&] {
           ops::product(y.t(), x, dw, ops::Destination::kAdd);
         });
}

// Milliseconds of the same three as the step computes them.
inline double
linear_ms(int64_t n, int64_t in, int64_t out, torch::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::ones({n, in}, dtype);
  const Tensor w = torch::ones({out, in}, dtype);
  const Tensor y = torch::ones({n, out}, dtype);
  const Tensor dw = torch::zeros({out, in});
  return median_ms(kPartRuns, [&] { ops::linear(x, w, Tensor()); }) +
         median_ms(kPartRuns, [&] { ops::linear_backward_input(y, w); }) +
         median_ms(kPartRuns, [&] { ops::linear_backward_weight(y, x, dw); });
}

struct LinearShape {
  std::string name;
  int64_t in, out;
};

inline std::vector<LinearShape> linears_of(const ModelShape& s) {
  return {
      {"linear q/k/v", s.hidden, s.qkv_width()},
      {"linear o", s.hidden, s.hidden},
      {"linear gate/up", s.hidden, 2 * s.ffn},
      {"linear down", s.ffn, s.hidden}};
}

// Values like those of initial weights, without a slow generator.
inline Tensor spread(int64_t numel) {
  return torch::arange(numel, torch::kFloat).mul_(0.7).sin_().mul_(0.02);
}

struct Part {
  std::string name;
  double count;  // per micro-batch
  double ms;
};

// Every op alone, forward and backward, at the step's shapes.
inline std::vector<Part> parts_of(
    const ModelShape& s,
    torch::ScalarType dtype) {
  const int64_t n = s.tokens();
  const auto leaf = [&](at::IntArrayRef sizes) {
    return (spread(c10::multiply_integers(sizes)) * 20)
        .view(sizes)
        .to(dtype)
        .requires_grad_(true);
  };
  // Gradients are handed on, as inside a model, and not added to leaves.
  const auto timed = [](const std::function<Tensor()>& op,
                        const std::vector<Tensor>& inputs) {
    const Tensor ones = torch::ones_like(op());
    return median_ms(
        kPartRuns, [&] { torch::autograd::grad({op()}, inputs, {ones}); });
  };
  const Tensor x = leaf({n, s.hidden});
  const Tensor residual = leaf({n, s.hidden});
  const Tensor norm = leaf({s.hidden});
  const Tensor gate_up = leaf({n, 2 * s.ffn});
  const auto heads = [&](int64_t count) {
    return leaf({s.micro_batch, s.sequence, count, s.head_dim()});
  };
  const Tensor q = heads(s.heads);
  const Tensor k = heads(s.key_heads);
  const Tensor v = heads(s.key_heads);
  ops::AttentionOptions rotary;
  rotary.query_rotary = ops::make_rotary_table(
      torch::arange(s.sequence, torch::kLong), s.head_dim(), 10000.0);
  Tensor head = leaf({s.vocabulary, s.hidden});
  head.mutable_grad() = torch::zeros({s.vocabulary, s.hidden});
  const Tensor targets =
      torch::randint(s.vocabulary, {n}, torch::dtype(torch::kLong));
  const auto layers = static_cast<double>(s.layers);
  std::vector<Part> parts;
  for (const LinearShape& linear : linears_of(s))
    parts.push_back(
        {linear.name, layers, linear_ms(n, linear.in, linear.out, dtype)});
  const std::vector<Part> others = {
      {"attention",
       layers,
       timed([&] { return ops::attention(q, k, v, rotary).out; }, {q, k, v})},
      {"add_rms_norm",
       2 * layers + 1,
       timed(
           [&] { return ops::add_rms_norm(x, residual, norm, 1e-5).first; },
           {x, residual, norm})},
      {"swiglu",
       layers,
       timed([&] { return ops::swiglu(gate_up); }, {gate_up})},
      {"head and cross-entropy",
       1,
       timed(
           [&] {
             return ops::linear_cross_entropy(
                 x,
                 head,
                 targets,
                 {.weight_grad = ops::WeightGrad::kAccumulate,
                  .known_gradient = 1.0});
           },
           {x})}};
  parts.insert(parts.end(), others.begin(), others.end());
  return parts;
}

// FLOPs of the linears' three products in a micro-batch, the head apart.
inline double linear_flops(const ModelShape& s) {
  const int64_t widths = s.hidden * (s.qkv_width() + s.hidden + 3 * s.ffn);
  return 6.0 * static_cast<double>(s.tokens() * s.layers * widths);
}
// FLOPs of attention's seven products, half of each because of causality.
inline double attention_flops(const ModelShape& s) {
  return 7.0 *
         static_cast<double>(s.tokens() * s.sequence * s.hidden * s.layers);
}
inline double product_flops(const ModelShape& s) {
  return linear_flops(s) + attention_flops(s) +
         6.0 * static_cast<double>(s.tokens() * s.hidden * s.vocabulary);
}

inline double bound_ms(const ModelShape& s, torch::ScalarType dtype) {
  double ms = 0;
  for (const LinearShape& linear : linears_of(s))
    ms += static_cast<double>(s.layers) *
          products_ms(s.tokens(), linear.in, linear.out, dtype);
  // Attention's at the rate of the linears.
  ms += attention_flops(s) / (linear_flops(s) / ms);
  return ms + products_ms(s.tokens(), s.hidden, s.vocabulary, dtype);
}

}  // namespace brigade::bench
