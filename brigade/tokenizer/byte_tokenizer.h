// The tokenizer that needs no file: one token per byte, then <bos> and <eos>.
#pragma once

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

class BytesTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kBos = 256;
  static constexpr int32_t kEos = 257;

  // Takes any bytes: "<bos>" in the text is five bytes, never the token.
  // kTemplate adds <bos> in front.
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options = {}) const override;
  std::string decode(
      std::span<const int32_t> ids,
      const DecodeOptions& options = {}) const override;
  int64_t vocab_size() const override { return 258; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
  // Bytes are written as SentencePiece writes them, "<0x0A>".
  std::optional<std::string> token_text(int32_t id) const override;
  std::optional<int32_t> token_id(std::string_view text) const override;
  std::string description() const override;
};

}  // namespace brigade
