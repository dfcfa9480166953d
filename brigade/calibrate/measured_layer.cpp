#include "brigade/calibrate/measured_layer.h"

#include <torch/torch.h>

#include "brigade/ops/attention.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr double kNormEps = 1e-5;
constexpr double kTheta = 1e4;

// With an fp32 .grad(), to which backward adds, as in training.
Tensor accumulating(const Tensor& values) {
  Tensor weight = values.to(torch::kBFloat16).requires_grad_();
  weight.mutable_grad() = torch::zeros(values.sizes());
  return weight;
}

Tensor weight_of(int64_t rows, int64_t columns) {
  return accumulating(torch::randn({rows, columns}).mul(0.02));
}

Tensor norm_of(int64_t width) {
  return accumulating(torch::ones({width}));
}

const ops::OpOptions kOptions = ops::WeightGrad::kAccumulate;

Tensor product(const Tensor& x, const Tensor& weight) {
  return ops::linear(
      x, weight, {}, {.weight_grad = ops::WeightGrad::kAccumulate});
}

}  // namespace

MeasuredLayer::MeasuredLayer(const planner::LayerSample& sizes)
    : sizes_(sizes),
      first_norm_(norm_of(sizes.hidden)),
      second_norm_(norm_of(sizes.hidden)),
      query_key_value_(weight_of(3 * sizes.hidden, sizes.hidden)),
      out_(weight_of(sizes.hidden, sizes.hidden)),
      gate_up_(weight_of(2 * sizes.intermediate, sizes.hidden)),
      down_(weight_of(sizes.hidden, sizes.intermediate)),
      rotary_(ops::make_rotary_table(
          torch::arange(sizes.sequence_tokens),
          sizes.hidden / sizes.heads,
          kTheta)) {}

MeasuredLayer::Stream MeasuredLayer::make_stream() const {
  const auto leaf = [&] {
    return torch::randn(
               {sizes_.sequences * sizes_.sequence_tokens, sizes_.hidden})
        .to(torch::kBFloat16)
        .requires_grad_();
  };
  return {leaf(), leaf()};
}

MeasuredLayer::Stream MeasuredLayer::forward(const Stream& input) const {
  const auto [sum, normed] = ops::add_rms_norm(
      input.delta, input.residual, first_norm_, kNormEps, kOptions);
  const auto heads = product(normed, query_key_value_)
                         .view(
                             {sizes_.sequences,
                              sizes_.sequence_tokens,
                              3,
                              sizes_.heads,
                              sizes_.hidden / sizes_.heads})
                         .unbind(2);
  ops::AttentionOptions options;
  options.query_rotary = rotary_;
  const Tensor attended = ops::attention(heads[0], heads[1], heads[2], options)
                              .out.reshape(sum.sizes());
  const auto [second_sum, second_normed] = ops::add_rms_norm(
      product(attended, out_), sum, second_norm_, kNormEps, kOptions);
  return {
      product(ops::swiglu(product(second_normed, gate_up_)), down_),
      second_sum};
}

void MeasuredLayer::backward(
    const Stream& output,
    const Stream& input,
    const Stream& output_grads) const {
  torch::autograd::grad(
      {output.delta, output.residual},
      {input.delta, input.residual},
      {output_grads.delta, output_grads.residual});
}

}  // namespace brigade
