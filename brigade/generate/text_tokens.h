// What stands before a text: the same in generation and evaluation.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// What an empty text begins with: the tokenizer's begin-of-text token or, where
// it has none, its end-of-text token. std::nullopt: it has neither.
std::optional<int64_t> start_token(const Tokenizer& tokenizer);

// The tokens of a text with what the tokenizer's own template puts around it,
// as transformers' tokenizer(text).
std::vector<int64_t> encode_text(
    const Tokenizer& tokenizer,
    std::string_view text);

}  // namespace brigade
