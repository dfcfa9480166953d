// The tokens that end a text: the same in generation and in a conversation.
#pragma once

#include <cstdint>
#include <set>

#include "brigade/generate/stored_model.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// The tokenizer's, and those that the model's config.json and
// generation_config.json name. Throws DataError for a file of these that is no
// JSON object.
std::set<int64_t> end_tokens(
    const StoredModel& stored,
    const Tokenizer& tokenizer);

}  // namespace brigade
