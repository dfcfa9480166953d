// JSON of chat data, with whole numbers as they are written. nlohmann's parser
// makes a float of one beyond 64 bits, which templates would print otherwise.
// NaN, Infinity and -Infinity, which Python's json module writes for what is
// missing, are null.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "brigade/base/error.h"

namespace brigade {

// The text is no JSON, from byte `byte` on, counted from 1.
struct RecordSyntaxError : DataError {
  explicit RecordSyntaxError(size_t at_byte);
  size_t byte;
};

// Throws RecordSyntaxError; DataError for a number beyond the range of a
// double. Neither says which file and line.
nlohmann::ordered_json parse_record(std::string_view text);

// The digits of a whole number, with its sign, that int64_t cannot hold.
std::optional<std::string> large_integer(const nlohmann::ordered_json& value);

}  // namespace brigade
