#include "brigade/generate/text_tokens.h"

namespace brigade {

std::optional<int64_t> start_token(const Tokenizer& tokenizer) {
  return tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
}

std::vector<int64_t> encode_text(
    const Tokenizer& tokenizer,
    std::string_view text) {
  const std::vector<int32_t> ids =
      tokenizer.encode(text, {.special_tokens = SpecialTokens::kTemplate});
  return {ids.begin(), ids.end()};
}

}  // namespace brigade
