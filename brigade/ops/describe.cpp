#include "brigade/ops/describe.h"

#include <fmt/ranges.h>

namespace brigade::ops {

std::string to_string(const Description& description) {
  if (description.tensor == nullptr)
    return "";
  const torch::Tensor& tensor = *description.tensor;
  if (!tensor.defined())
    return "undefined";
  return fmt::format(
      "{} [{}]",
      c10::toString(tensor.scalar_type()),
      fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

}  // namespace brigade::ops
