#include "brigade/safetensors/dtype.h"

#include <array>

#include "brigade/base/check.h"

namespace brigade {
namespace {

struct Row {
  SafetensorsDtype dtype;
  std::string_view name;
  uint64_t item_bytes;
};

constexpr std::array kRows = {
    Row{SafetensorsDtype::kBool, "BOOL", 1},
    Row{SafetensorsDtype::kU8, "U8", 1},
    Row{SafetensorsDtype::kI8, "I8", 1},
    Row{SafetensorsDtype::kF8E5M2, "F8_E5M2", 1},
    Row{SafetensorsDtype::kF8E4M3, "F8_E4M3", 1},
    Row{SafetensorsDtype::kI16, "I16", 2},
    Row{SafetensorsDtype::kU16, "U16", 2},
    Row{SafetensorsDtype::kF16, "F16", 2},
    Row{SafetensorsDtype::kBF16, "BF16", 2},
    Row{SafetensorsDtype::kI32, "I32", 4},
    Row{SafetensorsDtype::kU32, "U32", 4},
    Row{SafetensorsDtype::kF32, "F32", 4},
    Row{SafetensorsDtype::kF64, "F64", 8},
    Row{SafetensorsDtype::kI64, "I64", 8},
    Row{SafetensorsDtype::kU64, "U64", 8},
};

const Row& row_of(SafetensorsDtype dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype)
      return row;
  }
  BRIGADE_ASSERT(false, "safetensors dtype {}", static_cast<int>(dtype));
}

}  // namespace

std::optional<SafetensorsDtype> safetensors_dtype_named(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name)
      return row.dtype;
  }
  return std::nullopt;
}

std::string_view name_of(SafetensorsDtype dtype) {
  return row_of(dtype).name;
}

uint64_t item_bytes(SafetensorsDtype dtype) {
  return row_of(dtype).item_bytes;
}

}  // namespace brigade
