#include "brigade/model/weights.h"

#include "brigade/base/check.h"

namespace brigade {

ParameterSource::ParameterSource(const ModelContext& context)
    : dtype_(context.dtype) {
  auto shapes = std::make_shared<Shapes>();
  const TensorParallel& parallel = context.tensor_parallel;
  for (const ParameterRow& row : list_parameters(context.description)) {
    shapes->emplace(
        row.name,
        shard_parameter(row, parallel.size(), parallel.rank(), parallel.tokens)
            .shape);
  }
  shapes_ = std::move(shapes);
}

ParameterSource ParameterSource::inside(const std::string& name) const {
  ParameterSource source = *this;
  source.prefix_ += name + ".";
  return source;
}

std::shared_ptr<Weights> ParameterSource::make(const std::string& name) const {
  const auto weights = std::make_shared<Weights>();
  const std::string path = prefix_ + name;
  const auto weight = shapes_->find(path + ".weight");
  BRIGADE_ASSERT(
      weight != shapes_->end(), "'{}' is not in the model's table", path);
  weights->weight = weights->register_parameter(
      "weight", torch::empty(weight->second, dtype_));
  const auto bias = shapes_->find(path + ".bias");
  if (bias != shapes_->end()) {
    weights->bias =
        weights->register_parameter("bias", torch::empty(bias->second, dtype_));
  }
  return weights;
}

}  // namespace brigade
