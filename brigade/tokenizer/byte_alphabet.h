// GPT-2's alphabet: every byte as one printable character, so that a
// vocabulary of bytes can be written as text. Printable Latin-1 bytes stand
// for themselves, the other 68 are U+0100 and following, in order.
// Source: bytes_to_unicode() of openai/gpt-2, encoder.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

class ByteAlphabet {
 public:
  static char32_t character(uint8_t byte) { return table()[byte]; }

  // The byte that `c` stands for, unless it is outside the alphabet.
  static std::optional<uint8_t> byte(char32_t c);

  static std::string encode(std::string_view bytes);

 private:
  static constexpr bool is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
           byte >= 0xAE;
  }
  static constexpr std::array<char32_t, 256> make_table() {
    std::array<char32_t, 256> characters{};
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte)
      characters[byte] = is_printable(byte) ? byte : next++;
    return characters;
  }
  static const std::array<char32_t, 256>& table() {
    static constexpr std::array<char32_t, 256> kTable = make_table();
    return kTable;
  }
};

}  // namespace brigade
