// What a GGUF file is made of (ggml's docs/gguf.md, version 3):
//
//   "GGUF", u32 version, u64 tensors, u64 entries
//   entries: key, u32 value type, value
//   tensors: name, u32 dims, u64 sizes (the fastest first), u32 type,
//            u64 offset
//   padding to the alignment; the data, each tensor padded to the alignment
//
// All little-endian; a string is its length (u64) and its bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace brigade {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint32_t kGgufVersion = 3;
inline constexpr uint64_t kGgufAlignment = 32;
inline constexpr const char* kGgufAlignmentKey = "general.alignment";
inline constexpr uint32_t kGgufMaxDims = 4;

// The types of entries.
enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// An entry's value. The reader gives narrower integers as the 32-bit ones, and
// lists of numbers of any type as one of the two.
using GgufValue = std::variant<
    bool,
    uint32_t,
    int32_t,
    uint64_t,
    int64_t,
    float,
    std::string,
    std::vector<std::string>,
    std::vector<float>,
    std::vector<int32_t>>;

struct GgufEntry {
  std::string key;
  GgufValue value;
};

// The types of tensors that are read and written. A block of q8_0 is a float16
// scale and 32 int8.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

// By its number in a file, or by the name that users give ("q8_0").
std::optional<GgufType> gguf_type(uint32_t number);
std::optional<GgufType> gguf_type_named(std::string_view name);
const char* name_of(GgufType type);  // "q8_0"
// What ggml calls any of its types, or "type 77".
std::string ggml_type_name(uint32_t number);
// general.file_type of a file whose matrices are of the type.
uint32_t gguf_file_type(GgufType type);

// Values that are stored together, and the bytes that they take.
uint64_t block_numel(GgufType type);
uint64_t block_bytes(GgufType type);

struct GgufTensorSpec {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<uint64_t> shape;  // as in PyTorch: [rows, columns]
};

// The bytes of its data, without padding; std::nullopt where they cannot be
// counted or a row is not of whole blocks.
std::optional<uint64_t> data_bytes(const GgufTensorSpec& spec);

}  // namespace brigade
