#include "brigade/generate/limited_tokenizer.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

std::vector<int32_t> LimitedTokenizer::encode(
    std::string_view text,
    const EncodeOptions& options) const {
  std::vector<int32_t> ids = tokenizer_->encode(text, options);
  for (const int32_t id : ids) {
    if (id >= rows_) {
      throw DataError(fmt::format(
          "[model] the token \"{}\" has id {}, and the model's embedding only "
          "{} rows: leave it out of the text, or take the model's own "
          "tokenizer",
          tokenizer_->token_text(id).value_or(""),
          id,
          rows_));
    }
  }
  return ids;
}

}  // namespace brigade
