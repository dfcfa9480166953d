// What the parts of a tokenizer.json have in common when they are read.
#pragma once

#include <string_view>

#include "brigade/json/node.h"

namespace brigade {

// Throws DataError: Hugging Face's engine may know this part, Brigade does not.
[[noreturn]] void refuse(const JsonNode& node, std::string_view what);

// Sequences may nest, but not without end. Throws DataError.
void require_depth(const JsonNode& node, int depth);

// A string of exactly one character. Throws DataError.
const std::string& character(const JsonNode& node);

// The string at "type". Throws DataError.
const std::string& type_of(const JsonNode& node);

}  // namespace brigade
