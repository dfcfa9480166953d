// Some layers of one size, as a model has them one after another: forward
// through all of them, then backward.
#pragma once

#include <cstddef>
#include <vector>

#include "brigade/calibrate/measured_layer.h"

namespace brigade {

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
