// What the files beside a tokenizer say of it, as GGUF's entries.
//
// Private to brigade/gguf.
#pragma once

#include <filesystem>
#include <vector>

#include "brigade/gguf/format.h"
#include "brigade/gguf/token_list.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// Adds the ids of kSpecialTokens that tokenizer_config.json names and `entries`
// has not yet.
void add_named_tokens(
    const std::filesystem::path& folder,
    const Tokenizer& tokenizer,
    const TokenList& tokens,
    std::vector<GgufEntry>& entries);

// chat_template.jinja and additional_chat_templates/NAME.jinja, or what
// tokenizer_config.json says.
void add_chat_templates(
    const std::filesystem::path& folder,
    std::vector<GgufEntry>& entries);

}  // namespace brigade
