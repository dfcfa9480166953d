// Passes over JSON values by their grammar alone, where their meaning does not
// matter: numbers beyond the range of a double, halves of surrogate pairs and
// nesting of any depth are JSON too. NaN, Infinity and -Infinity, which
// Python's json module writes, are values.
//
// PURE.
#pragma once

#include <optional>
#include <string_view>

#include "brigade/json/string_member.h"

namespace brigade {

// The member `key` of the object that `text` is (the last one, if the key
// appears twice), all other members being of any JSON. std::nullopt: `text` is
// no JSON object, or the member is a string that is no text.
std::optional<StringMember> string_member_among_any(
    std::string_view text,
    std::string_view key);

}  // namespace brigade
