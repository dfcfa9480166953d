#include "brigade/checkpoint/torch_dtype.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

torch::Dtype torch_dtype(SafetensorsDtype dtype, std::string_view tensor) {
  switch (dtype) {
    case SafetensorsDtype::kF64:
      return torch::kFloat64;
    case SafetensorsDtype::kF32:
      return torch::kFloat32;
    case SafetensorsDtype::kF16:
      return torch::kFloat16;
    case SafetensorsDtype::kBF16:
      return torch::kBFloat16;
    default:
      throw DataError(fmt::format(
          "[checkpoint] tensor '{}' has dtype {}; weights are floats (F64, "
          "F32, F16 or BF16)",
          tensor,
          name_of(dtype)));
  }
}

}  // namespace brigade
