// A layer as Brigade's models have them, made of Brigade's ops: what a whole
// layer takes, beside its parts.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "brigade/calibrate/calibration.h"
#include "brigade/ops/rotary.h"
#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

class MeasuredLayer {
 public:
  // This rank's part of the layer, in bf16 with random weights, by sizes.tp,
  // sizes.tokens and sizes.cp; tp or cp is 1. `group` has as many ranks as the
  // other; all of them make every call.
  MeasuredLayer(const machine::LayerSample& sizes, CommunicatorPtr group);

  // What goes from layer to layer, both [this rank's tokens, hidden]: a layer's
  // input is their sum, which its first op makes.
  struct Stream {
    torch::Tensor delta;
    torch::Tensor residual;
  };
  Stream make_stream() const;  // of leaves
  Stream forward(const Stream& input) const;
  // Keeps its input alone; backward() runs it once more.
  Stream forward_recomputed(const Stream& input) const;
  // The gradients of `input`, which are dropped, and those of all weights.
  void backward(
      const Stream& output,
      const Stream& input,
      const Stream& output_grads) const;

 private:
  int64_t local_tokens() const { return sizes_.sequence_tokens / sizes_.cp; }

  machine::LayerSample sizes_;
  TensorParallel parallel_;
  CommunicatorPtr ring_;
  torch::Tensor first_norm_, second_norm_;  // [hidden]
  torch::Tensor query_key_value_;           // [3 hidden / tp, hidden]
  torch::Tensor out_;                       // [hidden, hidden / tp]
  torch::Tensor gate_up_;                   // [2 intermediate / tp, hidden]
  torch::Tensor down_;                      // [hidden, intermediate / tp]
  ops::RotaryTable rotary_;
};

// Some layers of one size, as a model has them one after another: forward
// through all of them, then backward.
class LayerStack {
 public:
  // As so many MeasuredLayers. is_recomputed: each keeps its input alone.
  LayerStack(
      const machine::LayerSample& sizes,
      const CommunicatorPtr& group,
      size_t count,
      bool is_recomputed = false);

  void forward();
  void backward();  // behind forward()
  size_t size() const { return layers_.size(); }

 private:
  bool is_recomputed_;
  std::vector<MeasuredLayer> layers_;
  std::vector<MeasuredLayer::Stream> outputs_;  // of the last forward()
  MeasuredLayer::Stream input_;                 // of each layer
  MeasuredLayer::Stream grads_;
};

}  // namespace brigade
