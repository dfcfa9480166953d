#include "brigade/model/norm.h"

#include <utility>

#include "brigade/tensor_parallel/parallel_norm.h"

namespace brigade {

torch::Tensor join(const ResidualStream& stream) {
  return stream.residual.defined() ? stream.delta + stream.residual
                                   : stream.delta;
}

Norm::Norm(
    torch::nn::Module& parent,
    const NormDescription& description,
    const ParameterSource& source,
    ops::OpOptions options)
    : formula_(
          description.eps,
          description.scale == NormScale::kOnePlusWeight ? 1 : 0),
      options_(options),
      weights_(parent.register_module(
          description.name,
          source.make(description.name))) {}

torch::Tensor Norm::forward(const torch::Tensor& x) const {
  return ops::rms_norm(x, weights_->weight, formula_, options_);
}

torch::Tensor Norm::forward(
    const torch::Tensor& x,
    const CommunicatorPtr& group) const {
  return parallel_rms_norm(group, x, weights_->weight, formula_, options_);
}

ResidualStream Norm::forward(const ResidualStream& stream) const {
  if (!stream.residual.defined())
    return {forward(stream.delta), stream.delta};
  auto [normed, sum] = ops::add_rms_norm(
      stream.delta, stream.residual, weights_->weight, formula_, options_);
  return {std::move(normed), std::move(sum)};
}

}  // namespace brigade
