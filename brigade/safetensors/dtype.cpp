#include "brigade/safetensors/dtype.h"

#include <array>

#include "brigade/base/check.h"

namespace brigade {
namespace {

struct Row {
  SafetensorsDtype dtype;
  std::string_view name;
  uint64_t item_bits;
};

constexpr std::array kRows = {
    Row{SafetensorsDtype::kBool, "BOOL", 8},
    Row{SafetensorsDtype::kF4, "F4", 4},
    Row{SafetensorsDtype::kF6E2M3, "F6_E2M3", 6},
    Row{SafetensorsDtype::kF6E3M2, "F6_E3M2", 6},
    Row{SafetensorsDtype::kU8, "U8", 8},
    Row{SafetensorsDtype::kI8, "I8", 8},
    Row{SafetensorsDtype::kF8E5M2, "F8_E5M2", 8},
    Row{SafetensorsDtype::kF8E4M3, "F8_E4M3", 8},
    Row{SafetensorsDtype::kF8E8M0, "F8_E8M0", 8},
    Row{SafetensorsDtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    Row{SafetensorsDtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    Row{SafetensorsDtype::kI16, "I16", 16},
    Row{SafetensorsDtype::kU16, "U16", 16},
    Row{SafetensorsDtype::kF16, "F16", 16},
    Row{SafetensorsDtype::kBF16, "BF16", 16},
    Row{SafetensorsDtype::kI32, "I32", 32},
    Row{SafetensorsDtype::kU32, "U32", 32},
    Row{SafetensorsDtype::kF32, "F32", 32},
    Row{SafetensorsDtype::kC64, "C64", 64},
    Row{SafetensorsDtype::kF64, "F64", 64},
    Row{SafetensorsDtype::kI64, "I64", 64},
    Row{SafetensorsDtype::kU64, "U64", 64},
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

uint64_t item_bits(SafetensorsDtype dtype) {
  return row_of(dtype).item_bits;
}

uint64_t item_bytes(SafetensorsDtype dtype) {
  const uint64_t bits = item_bits(dtype);
  BRIGADE_ASSERT(bits % 8 == 0, "{} bits", bits);
  return bits / 8;
}

}  // namespace brigade
