// One string of a JSON object, found without building the rest: for long lines
// of JSON, of which one member is the text.
//
// PURE.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "brigade/json/visit.h"

namespace brigade {

struct StringMember {
  enum class Outcome { kNoObject, kAbsent, kOtherType, kString };
  Outcome outcome = Outcome::kNoObject;
  std::string text;  // with kString
};

// Looks for the member `key` of the object that `text` is; the last one, if
// the key appears twice. Returns what is wrong when `text` is not valid JSON or
// the member is no text (half a surrogate pair); other members may be whatever
// the grammar allows.
std::optional<JsonFault> find_string_member(
    std::string_view text,
    std::string_view key,
    StringMember& found);

}  // namespace brigade
