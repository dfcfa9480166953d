#include "brigade/tokenizer/byte_tokenizer.h"

#include <fmt/format.h>

#include "brigade/tokenizer/utf8.h"

namespace brigade {

std::vector<int32_t> BytesTokenizer::encode(
    std::string_view text,
    const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() + 1);
  if (options.special_tokens == SpecialTokens::kTemplate)
    ids.push_back(kBos);
  for (const char c : text)
    ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string BytesTokenizer::decode(
    std::span<const int32_t> ids,
    const DecodeOptions& options) const {
  std::string bytes;
  bytes.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id >= 0 && id < 256)
      bytes.push_back(static_cast<char>(id));
    else if (!options.skip_special_tokens && id >= 0 && id < vocab_size())
      bytes += id == kBos ? "<bos>" : "<eos>";
  }
  return to_valid_utf8(std::move(bytes));
}

std::optional<std::string> BytesTokenizer::token_text(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    return std::nullopt;
  if (id >= 256)
    return id == kBos ? "<bos>" : "<eos>";
  return fmt::format("<0x{:02X}>", id);
}

std::optional<int32_t> BytesTokenizer::token_id(std::string_view text) const {
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (text == *token_text(id))
      return id;
  }
  return std::nullopt;
}

std::string BytesTokenizer::description() const {
  return "bytes: 256 bytes, <bos>, <eos>";
}

}  // namespace brigade
