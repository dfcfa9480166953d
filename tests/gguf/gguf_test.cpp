// The format: an independent writer's bytes, and what the reader refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/gguf/blocks.h"
#include "brigade/gguf/reader.h"
#include "brigade/gguf/writer.h"
#include "tests/support/message_of.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Number>
std::string raw(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
std::string u32(uint32_t value) {
  return raw(value);
}
std::string u64(uint64_t value) {
  return raw(value);
}
std::string text(const std::string& value) {
  return u64(value.size()) + value;
}
std::string padded(std::string bytes) {
  while (bytes.size() % 32 != 0)
    bytes += '\0';
  return bytes;
}

std::string start(uint64_t tensors, uint64_t entries) {
  return "GGUF" + u32(3) + u64(tensors) + u64(entries);
}

// One f32 tensor "w" of 2 rows and 3 columns.
std::string whole_file() {
  std::string bytes = start(1, 2);
  bytes += text("general.architecture") + u32(8) + text("llama");
  bytes += text("list") + u32(9) + u32(5) + u64(2) + raw<int32_t>(-1) +
           raw<int32_t>(7);
  bytes += text("w") + u32(2) + u64(3) + u64(2) + u32(0) + u64(0);
  bytes = padded(bytes);
  for (const float value : {1.F, 2.F, 3.F, 4.F, 5.F, 6.F})
    bytes += raw(value);
  return padded(bytes);
}

std::span<const std::byte> bytes_of(const std::string& file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

std::string refusal(const std::string& file) {
  return message_of<DataError>(
      [&] { parse_gguf(bytes_of(file), "some.gguf"); });
}

TEST(Gguf, ReadsEntriesAndTensorsWithRowsFirst) {
  const std::string file = whole_file();
  const GgufContents contents = parse_gguf(bytes_of(file), "some.gguf");
  EXPECT_EQ(
      std::get<std::string>(contents.entries.at("general.architecture")),
      "llama");
  EXPECT_THAT(
      std::get<std::vector<int32_t>>(contents.entries.at("list")),
      ElementsAre(-1, 7));
  ASSERT_EQ(contents.tensors.size(), 1);
  EXPECT_THAT(contents.tensors[0].shape, ElementsAre(2, 3));
  std::vector<float> values(6);
  decode_gguf(contents.tensors[0].data, GgufType::kF32, values);
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Gguf, WritesTheBytesOfTheFormat) {
  const TemporaryFolder folder;
  GgufWriter writer(
      folder / "a.gguf",
      {{"general.architecture", std::string("llama")},
       {"list", std::vector<int32_t>{-1, 7}}},
      {{"w", GgufType::kF32, {2, 3}}});
  writer.write_next(
      encode_gguf(std::vector<float>{1, 2, 3, 4, 5, 6}, GgufType::kF32, "w"));
  writer.commit();
  EXPECT_EQ(read_text_file(folder / "a.gguf"), whole_file());
}

TEST(Gguf, EveryTruncationIsRefusedWithItsOffset) {
  const std::string file = whole_file();
  // The last tensor's padding may be missing.
  const size_t needed = file.size() - 8;
  for (size_t size = 0; size < needed; ++size) {
    const std::string message = refusal(file.substr(0, size));
    ASSERT_THAT(message, HasSubstr("'some.gguf' at byte ")) << size;
  }
  EXPECT_EQ(refusal(file.substr(0, needed)), "");
}

TEST(Gguf, RefusesForeignFilesByName) {
  EXPECT_THAT(refusal("PK\3\4 and more"), HasSubstr("does not begin"));
  EXPECT_THAT(
      refusal("GGUF" + u32(0x03000000) + std::string(64, '\0')),
      HasSubstr("at byte 4: the file is big-endian"));
  EXPECT_THAT(
      refusal("GGUF" + u32(1) + std::string(64, '\0')),
      HasSubstr("version 1; only 2 and 3 are read"));
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  EXPECT_THAT(
      refusal(start(uint64_t{1} << 60, 0)), HasSubstr("cannot be in the"));
  const std::string list =
      start(0, 1) + text("k") + u32(9) + u32(6) + u64(uint64_t{1} << 62);
  EXPECT_THAT(refusal(list), HasSubstr("values cannot be in the 0 bytes"));
  EXPECT_THAT(
      refusal(
          start(0, 1) + u64(std::numeric_limits<uint64_t>::max()) + "abcdef"),
      HasSubstr("goes beyond the end"));
}

std::string tensor(
    const std::string& name,
    const std::vector<uint64_t>& sizes,
    uint32_t type,
    uint64_t offset) {
  std::string bytes = text(name) + u32(static_cast<uint32_t>(sizes.size()));
  for (const uint64_t size : sizes)
    bytes += u64(size);
  return bytes + u32(type) + u64(offset);
}

std::string with_tensors(const std::vector<std::string>& tensors) {
  std::string bytes = start(tensors.size(), 0);
  for (const std::string& each : tensors)
    bytes += each;
  return padded(bytes) + std::string(256, '\0');
}

TEST(Gguf, RefusesTensorsThatCannotBe) {
  EXPECT_THAT(
      refusal(with_tensors({tensor("w", {256}, 12, 0)})),
      HasSubstr("tensor 'w' is Q4_K; only f32, f16, bf16 and q8_0 are read"));
  EXPECT_THAT(
      refusal(with_tensors({tensor("w", {48}, 8, 0)})),
      HasSubstr("tensor 'w' has rows of 48 values, which q8_0 cannot hold"));
  EXPECT_THAT(
      refusal(with_tensors(
          {tensor("w", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0)})),
      HasSubstr("tensor 'w'"));
  EXPECT_THAT(
      refusal(with_tensors({tensor("w", {4}, 0, 0), tensor("w", {4}, 0, 32)})),
      HasSubstr("tensor 'w' comes twice"));
  EXPECT_THAT(
      refusal(with_tensors({tensor("w", {4}, 0, 0), tensor("v", {4}, 0, 16)})),
      HasSubstr("tensor 'v' is said to be at 16, expected 32"));
  EXPECT_THAT(
      refusal(with_tensors({tensor("w", {1, 1, 1, 1, 1}, 0, 0)})),
      HasSubstr("has 5 dims, expected 1 to 4"));
}

TEST(GgufBlocks, Float16RoundsToNearestEven) {
  // Values and their bits in IEEE 754.
  const std::vector<std::pair<float, uint16_t>> known = {
      {0.F, 0},
      {-0.F, 0x8000},
      {1.F, 0x3C00},
      {-2.F, 0xC000},
      {65504.F, 0x7BFF},
      {65519.F, 0x7BFF},
      {65520.F, 0x7C00},
      {0x1p-14F, 0x0400},
      {0x1p-24F, 0x0001},
      {0x1p-25F, 0x0000},
      {0x1.8p-24F, 0x0002},
      {1.F + 0x1p-11F, 0x3C00},
      {1.F + 3 * 0x1p-11F, 0x3C02},
      {0x1.ffcp-15F + 0x1p-26F, 0x0400}};
  for (const auto& [value, bits] : known)
    EXPECT_EQ(float16_bits(value), bits) << value;
}

TEST(GgufBlocks, EveryFloat16ComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_of_float16(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(float16_bits(value), bits);
    }
  }
}

TEST(GgufBlocks, Q8HoldsStepsOfTheLargestValueBy127) {
  std::vector<float> values(64, 0.F);
  for (size_t i = 0; i < 32; ++i)
    values[i] = static_cast<float>(i) - 12.F;
  const auto data = encode_gguf(values, GgufType::kQ8_0, "w");
  ASSERT_EQ(data.size(), 68);
  std::vector<float> back(64);
  decode_gguf(data, GgufType::kQ8_0, back);
  const float step = float_of_float16(float16_bits(19.F / 127.F));
  for (size_t i = 0; i < 64; ++i) {
    const float steps = std::round(values[i] * (127.F / 19.F));
    EXPECT_FLOAT_EQ(back[i], i < 32 ? steps * step : 0.F) << i;
  }
}

TEST(GgufBlocks, RefusesValuesThatTheTypeCannotHold) {
  const std::vector<float> values = {1.F, 1e6F};
  EXPECT_THAT(
      message_of<DataError>(
          [&] { encode_gguf(values, GgufType::kF16, "blk.0.w"); }),
      HasSubstr("'blk.0.w' holds 1000000 at element 1"));
}

}  // namespace
}  // namespace brigade
