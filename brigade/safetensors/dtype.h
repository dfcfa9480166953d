// The element types of safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace brigade {

// The order is that of the format's own enum, narrowest first: its writer puts
// tensors in descending order of this.
enum class SafetensorsDtype : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// "F32", "BF16", ...; std::nullopt for a name that the format does not have.
std::optional<SafetensorsDtype> safetensors_dtype_named(std::string_view name);
std::string_view name_of(SafetensorsDtype dtype);
uint64_t item_bits(SafetensorsDtype dtype);
// Precondition: the dtype is of whole bytes (all but F4 and F6).
uint64_t item_bytes(SafetensorsDtype dtype);

}  // namespace brigade
