#include "brigade/tokenizer/base64.h"

#include <openssl/evp.h>

#include <algorithm>
#include <climits>

namespace brigade {

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0 || text.size() > INT_MAX)
    return std::nullopt;
  // OpenSSL skips white space, and takes padding anywhere.
  size_t padding = 0;
  while (padding < 2 && padding < text.size() &&
         text[text.size() - 1 - padding] == '=')
    ++padding;
  const std::string_view digits = text.substr(0, text.size() - padding);
  const bool valid = std::all_of(digits.begin(), digits.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c >= '0' && c <= '9') || c == '+' || c == '/';
  });
  if (!valid)
    return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(
      reinterpret_cast<unsigned char*>(bytes.data()),
      reinterpret_cast<const unsigned char*>(text.data()),
      static_cast<int>(text.size()));
  if (size < 0 || static_cast<size_t>(size) != bytes.size())
    return std::nullopt;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace brigade
