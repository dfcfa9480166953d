// Size arithmetic on numbers that came from a file: every product and sum
// goes through here before anything is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace brigade {

// std::nullopt when the exact result does not fit a uint64_t.
inline std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    return std::nullopt;
  return result;
}

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result))
    return std::nullopt;
  return result;
}

// The product of a shape; 1 for a scalar's empty shape.
inline std::optional<uint64_t> checked_product(std::span<const uint64_t> dims) {
  uint64_t result = 1;
  for (uint64_t dim : dims) {
    if (__builtin_mul_overflow(result, dim, &result))
      return std::nullopt;
  }
  return result;
}

}  // namespace brigade
