// Megatron's .idx. Input: the size of the .bin (u16), then the .idx.
#include <array>
#include <cstring>

#include "brigade/base/error.h"
#include "tests/fuzz/check_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brigade;
  static const std::array<std::byte, 1 << 16> kTokens{};
  uint16_t tokens_bytes = 0;
  if (size < sizeof(tokens_bytes))
    return 0;
  std::memcpy(&tokens_bytes, data, sizeof(tokens_bytes));
  const auto index = std::as_bytes(std::span(data, size)).subspan(2);
  try {
    const TokenFileLayout layout = parse_megatron(
        {"x.idx", index}, {"x.bin", std::span(kTokens).first(tokens_bytes)});
    check_layout(layout, tokens_bytes);
  } catch (const DataError&) {
  }
  return 0;
}
