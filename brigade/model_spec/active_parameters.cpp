#include "brigade/model_spec/active_parameters.h"

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

int64_t active_parameter_count(const DecoderConfig& config) {
  int64_t everywhere = 0;
  int64_t of_experts = 0;
  for (const ParameterRow& row : list_parameters(config)) {
    if (row.role == ParameterRole::kRouterBias)
      continue;  // nothing is multiplied with it
    (row.expert == kNoExpert ? everywhere : of_experts) += row.numel();
  }
  if (!config.experts)
    return everywhere;
  // All experts have as many parameters.
  return everywhere + of_experts / config.experts->num_experts *
                          config.experts->num_experts_per_tok;
}

}  // namespace brigade
