// JSON text to nlohmann's values, with every fault at its place: syntax,
// keys that appear twice in an object (of which a plain parser silently keeps
// the last), depth, size; and values to text.
//
// PURE.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/json/visit.h"

namespace brigade {

// std::nullopt after a fault that ends reading. A repeated key is a fault
// too, but reading goes on and the last value is returned.
std::optional<nlohmann::json> parse_json(
    std::string_view text,
    const JsonLimits& limits,
    std::vector<JsonFault>& faults);

// The value if the text is one JSON value without faults: for text that may or
// may not be JSON.
std::optional<nlohmann::json> parse_json_or_nothing(std::string_view text);

// On one line, or with `indent` spaces per level. What is no UTF-8, which paths
// may hold, is replaced, where dump() would throw.
template <typename Json>
std::string json_to_text(const Json& value, int indent = -1) {
  return value.dump(
      indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The type of a value as messages name it: "null", "an object", "a number".
const char* kind_of(const nlohmann::json& value);

// One line of at most 80 bytes, cut with "..."; any bytes.
std::string show_json(const nlohmann::json& value);

}  // namespace brigade
