#include "brigade/gguf/format.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/checked_math.h"

namespace brigade {
namespace {

struct TypeRow {
  GgufType type;
  const char* name;
  uint64_t block_numel;
  uint64_t block_bytes;
  uint32_t file_type;
};
constexpr std::array kTypes = {
    TypeRow{GgufType::kF32, "f32", 1, 4, 0},
    TypeRow{GgufType::kF16, "f16", 1, 2, 1},
    TypeRow{GgufType::kQ8_0, "q8_0", 32, 34, 7},
    TypeRow{GgufType::kBF16, "bf16", 1, 2, 32},
};

const TypeRow& row_of(GgufType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type)
      return row;
  }
  BRIGADE_ASSERT(false, "GGUF type {}", static_cast<uint32_t>(type));
}

// The names of types that are not read, for messages.
constexpr std::array kOtherTypes = {
    std::pair(2U, "Q4_0"),    std::pair(3U, "Q4_1"),
    std::pair(6U, "Q5_0"),    std::pair(7U, "Q5_1"),
    std::pair(9U, "Q8_1"),    std::pair(10U, "Q2_K"),
    std::pair(11U, "Q3_K"),   std::pair(12U, "Q4_K"),
    std::pair(13U, "Q5_K"),   std::pair(14U, "Q6_K"),
    std::pair(15U, "Q8_K"),   std::pair(16U, "IQ2_XXS"),
    std::pair(17U, "IQ2_XS"), std::pair(18U, "IQ3_XXS"),
    std::pair(19U, "IQ1_S"),  std::pair(20U, "IQ4_NL"),
    std::pair(21U, "IQ3_S"),  std::pair(22U, "IQ2_S"),
    std::pair(23U, "IQ4_XS"), std::pair(24U, "I8"),
    std::pair(25U, "I16"),    std::pair(26U, "I32"),
    std::pair(27U, "I64"),    std::pair(28U, "F64"),
    std::pair(29U, "IQ1_M"),  std::pair(34U, "TQ1_0"),
    std::pair(35U, "TQ2_0"),  std::pair(39U, "MXFP4"),
};

}  // namespace

std::optional<GgufType> gguf_type(uint32_t number) {
  for (const TypeRow& row : kTypes) {
    if (static_cast<uint32_t>(row.type) == number)
      return row.type;
  }
  return std::nullopt;
}

std::optional<GgufType> gguf_type_named(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name)
      return row.type;
  }
  return std::nullopt;
}

const char* name_of(GgufType type) {
  return row_of(type).name;
}

std::string ggml_type_name(uint32_t number) {
  if (const auto type = gguf_type(number))
    return name_of(*type);
  for (const auto& [other, name] : kOtherTypes) {
    if (other == number)
      return name;
  }
  return fmt::format("type {}", number);
}

uint32_t gguf_file_type(GgufType type) {
  return row_of(type).file_type;
}

uint64_t block_numel(GgufType type) {
  return row_of(type).block_numel;
}

uint64_t block_bytes(GgufType type) {
  return row_of(type).block_bytes;
}

std::optional<uint64_t> data_bytes(const GgufTensorSpec& spec) {
  const TypeRow& row = row_of(spec.type);
  const auto numel = checked_product(spec.shape);
  if (!numel || (!spec.shape.empty() && spec.shape.back() % row.block_numel))
    return std::nullopt;
  return checked_multiply(*numel / row.block_numel, row.block_bytes);
}

}  // namespace brigade
