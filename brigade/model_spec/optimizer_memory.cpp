#include "brigade/model_spec/optimizer_memory.h"

#include <cmath>

namespace brigade {

StepUnit step_unit(const ParameterRow& row, const OptimizerOptions& options) {
  return row.role == ParameterRole::kMatrix ? options.matrix_unit()
                                            : StepUnit::kElements;
}

int64_t state_bytes(
    const ParameterRow& row,
    int64_t numel,
    const OptimizerOptions& options,
    WeightWidth weight) {
  const double each =
      element_bytes(optimizer_states(options, step_unit(row, options), weight));
  return std::llround(static_cast<double>(numel) * each);
}

}  // namespace brigade
