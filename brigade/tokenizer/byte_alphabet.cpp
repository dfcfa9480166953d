#include "brigade/tokenizer/byte_alphabet.h"

#include "brigade/base/utf8.h"

namespace brigade {

std::optional<uint8_t> ByteAlphabet::byte(char32_t c) {
  if (c < 0x100)
    return is_printable(static_cast<int>(c))
               ? std::optional<uint8_t>(static_cast<uint8_t>(c))
               : std::nullopt;
  for (int byte = 0; byte < 256; ++byte) {
    if (table()[byte] == c)
      return static_cast<uint8_t>(byte);
  }
  return std::nullopt;
}

std::string ByteAlphabet::encode(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char c : bytes)
    append_utf8(out, character(static_cast<uint8_t>(c)));
  return out;
}

}  // namespace brigade
