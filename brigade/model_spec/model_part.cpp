#include "brigade/model_spec/model_part.h"

namespace brigade {

ExpertRange experts_of_rank(
    const DecoderConfig& config,
    const ParallelDims& dims,
    const Coordinate& at) {
  if (!config.experts)
    return {};
  const int64_t count = config.experts->num_experts / dims.ep;
  const int64_t begin = count * dims.expert_rank(at);
  return {.begin = begin, .end = begin + count};
}

ModelPart whole_model(const DecoderConfig& config) {
  return {.layers = {0, static_cast<int>(config.num_hidden_layers)}};
}

}  // namespace brigade
