// nanotron's .ds. Input: flags (u8: 1 an index, 2 a width is given, 4 that
// width is uint32, 8 a vocabulary), the size of the .ds (u16), its index.
#include <array>
#include <cstring>

#include "brigade/base/error.h"
#include "tests/fuzz/check_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brigade;
  static const std::array<std::byte, 1 << 16> kTokens{};
  if (size < 3)
    return 0;
  const uint8_t flags = data[0];
  uint16_t tokens_bytes = 0;
  std::memcpy(&tokens_bytes, data + 1, sizeof(tokens_bytes));
  std::optional<NamedBytes> index;
  if ((flags & 1) != 0)
    index = {"x.ds.index", std::as_bytes(std::span(data, size)).subspan(3)};
  std::optional<TokenType> type;
  if ((flags & 2) != 0)
    type = (flags & 4) != 0 ? TokenType::kU32 : TokenType::kU16;
  std::optional<int64_t> vocab_size;
  if ((flags & 8) != 0)
    vocab_size = 50257;
  try {
    const TokenFileLayout layout = parse_nanotron(
        {"x.ds", std::span(kTokens).first(tokens_bytes)},
        index,
        type,
        vocab_size);
    check_layout(layout, tokens_bytes);
  } catch (const DataError&) {
  }
  return 0;
}
