#include "brigade/calibrate/layer_stack.h"

#include <utility>

namespace brigade {
namespace {

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
