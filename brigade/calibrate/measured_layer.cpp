#include "brigade/calibrate/measured_layer.h"

#include <torch/torch.h>

#include <utility>

#include "brigade/comm/self_communicator.h"
#include "brigade/context_parallel/ring_attention.h"
#include "brigade/model/recompute.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "brigade/tensor_parallel/parallel_linear.h"
#include "brigade/topology/sequence_partition.h"

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

const ops::LinearOptions kLinearOptions = {
    .weight_grad = ops::WeightGrad::kAccumulate};

std::vector<MeasuredLayer> make_layers(
    const machine::LayerSample& sizes,
    const CommunicatorPtr& group,
    size_t count) {
  std::vector<MeasuredLayer> layers;
  for (size_t i = 0; i < count; ++i)
    layers.emplace_back(sizes, group);
  return layers;
}

}  // namespace

MeasuredLayer::MeasuredLayer(
    const machine::LayerSample& sizes,
    CommunicatorPtr group)
    : sizes_(sizes),
      parallel_{sizes.cp > 1 ? make_self_communicator() : group, sizes.tokens},
      ring_(sizes.cp > 1 ? group : make_self_communicator()),
      first_norm_(norm_of(sizes.hidden)),
      second_norm_(norm_of(sizes.hidden)),
      query_key_value_(weight_of(3 * sizes.hidden / sizes.tp, sizes.hidden)),
      out_(weight_of(sizes.hidden, sizes.hidden / sizes.tp)),
      gate_up_(weight_of(2 * sizes.intermediate / sizes.tp, sizes.hidden)),
      down_(weight_of(sizes.hidden, sizes.intermediate / sizes.tp)),
      rotary_(ops::make_rotary_table(
          torch::tensor(
              token_positions(sizes.sequence_tokens, sizes.cp, ring_->rank())),
          sizes.hidden / sizes.heads,
          kTheta)) {}

MeasuredLayer::Stream MeasuredLayer::make_stream() const {
  const int64_t tokens = sizes_.sequences * local_tokens();
  const int64_t own =
      sizes_.tokens == TokenLayout::kSharded ? tokens / sizes_.tp : tokens;
  const auto leaf = [&] {
    return torch::randn({own, sizes_.hidden})
        .to(torch::kBFloat16)
        .requires_grad_();
  };
  return {leaf(), leaf()};
}

MeasuredLayer::Stream MeasuredLayer::forward(const Stream& input) const {
  const auto [sum, normed] = ops::add_rms_norm(
      input.delta, input.residual, first_norm_, kNormEps, kOptions);
  const auto column = [&](const Tensor& x, const Tensor& weight) {
    return column_parallel_linear(parallel_, x, {weight}, {}, kLinearOptions)
        .front();
  };
  const auto row = [&](const Tensor& x, const Tensor& weight) {
    return row_parallel_linear(parallel_, x, weight, {}, kLinearOptions);
  };
  const auto heads = column(normed, query_key_value_)
                         .view(
                             {sizes_.sequences,
                              local_tokens(),
                              3,
                              sizes_.heads / sizes_.tp,
                              sizes_.hidden / sizes_.heads})
                         .unbind(2);
  RingAttentionOptions options;
  options.attention.query_rotary = rotary_;
  const Tensor attended =
      ring_attention(ring_, heads[0], heads[1], heads[2], options)
          .reshape(
              {sizes_.sequences * local_tokens(), sizes_.hidden / sizes_.tp});
  const auto [second_sum, second_normed] = ops::add_rms_norm(
      row(attended, out_), sum, second_norm_, kNormEps, kOptions);
  return {row(ops::swiglu(column(second_normed, gate_up_)), down_), second_sum};
}

MeasuredLayer::Stream MeasuredLayer::forward_recomputed(
    const Stream& input) const {
  // As a model's blocks: one tensor between them.
  const Tensor output = recompute(
      [this](const std::vector<Tensor>& streams) {
        const Stream stream = forward({streams[0], streams[1]});
        return stream.delta + stream.residual;
      },
      {input.delta, input.residual});
  return {output, output};
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

LayerStack::LayerStack(
    const machine::LayerSample& sizes,
    const CommunicatorPtr& group,
    size_t count,
    bool is_recomputed)
    : is_recomputed_(is_recomputed),
      layers_(make_layers(sizes, group, count)),
      outputs_(count),
      input_(layers_.front().make_stream()),
      grads_(layers_.front().make_stream()) {}

void LayerStack::forward() {
  for (size_t i = 0; i < layers_.size(); ++i)
    outputs_[i] = is_recomputed_ ? layers_[i].forward_recomputed(input_)
                                 : layers_[i].forward(input_);
}

void LayerStack::backward() {
  for (size_t i = layers_.size(); i-- > 0;)
    layers_[i].backward(std::exchange(outputs_[i], {}), input_, grads_);
}

}  // namespace brigade
