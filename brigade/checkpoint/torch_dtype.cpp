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

torch::Tensor as_tensor(const SafetensorsTensor& stored) {
  std::vector<int64_t> shape(stored.shape.begin(), stored.shape.end());
  const auto dtype = torch_dtype(stored.dtype, stored.name);
  // from_blob wants a mutable pointer; nothing writes through it.
  auto* data = const_cast<std::byte*>(stored.data.data());
  const auto bytes = torch::from_blob(
      data, {static_cast<int64_t>(stored.data.size())}, torch::kByte);
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) == 0;
  if (is_aligned)
    return torch::from_blob(data, shape, dtype);
  const auto copy = bytes.clone();
  return torch::from_blob(
      copy.data_ptr(), shape, [copy](void*) {}, dtype);
}

torch::Tensor as_codes(const SafetensorsTensor& stored) {
  const std::vector<int64_t> shape(stored.shape.begin(), stored.shape.end());
  return torch::from_blob(
      const_cast<std::byte*>(stored.data.data()),
      shape,
      stored.dtype == SafetensorsDtype::kI8 ? torch::kChar : torch::kByte);
}

void check_finite(
    const torch::Tensor& values,
    std::string_view tensor,
    const std::function<std::filesystem::path()>& find_file) {
  const torch::Tensor is_finite = values.isfinite();
  if (is_finite.all().item<bool>())
    return;
  throw DataError(fmt::format(
      "[checkpoint] tensor '{}' in '{}' has {} values that are not finite; the "
      "file is damaged, or of a training that diverged",
      tensor,
      find_file().string(),
      is_finite.logical_not().sum().item<int64_t>()));
}

}  // namespace brigade
