#include "brigade/model_spec/model_part.h"

namespace brigade {

ModelPart whole_model(const DecoderConfig& config) {
  return {.layers = {0, static_cast<int>(config.num_hidden_layers)}};
}

}  // namespace brigade
