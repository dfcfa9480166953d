// The tokenizer that needs no file: one token per byte, then <bos> and <eos>.
#include <fmt/format.h>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/kinds.h"

namespace brigade {
namespace {

class BytesTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256;
  static constexpr int32_t kEos = 257;

  // Takes any bytes: "<bos>" in the text is five bytes, never the token.
  // kTemplate adds <bos> in front.
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() + 1);
    if (options.special_tokens == SpecialTokens::kTemplate)
      ids.push_back(kBos);
    for (const char c : text)
      ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options)
      const override {
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

  int64_t vocab_size() const override { return 258; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }

  // Bytes are written as SentencePiece writes them, "<0x0A>".
  std::optional<std::string> token_text(int32_t id) const override {
    if (id < 0 || id >= vocab_size())
      return std::nullopt;
    if (id >= 256)
      return id == kBos ? "<bos>" : "<eos>";
    return fmt::format("<0x{:02X}>", id);
  }

  std::optional<int32_t> token_id(std::string_view text) const override {
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (text == *token_text(id))
        return id;
    }
    return std::nullopt;
  }

  std::string description() const override {
    return "bytes: 256 bytes, <bos>, <eos>";
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() {
  return std::make_unique<BytesTokenizer>();
}

}  // namespace brigade
