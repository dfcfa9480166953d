// JSON as Python's json module takes it, for files that Python programs write:
// NaN, Infinity and -Infinity are values, and of a key that an object holds
// twice the last one counts.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "brigade/json/node.h"

namespace brigade {

// The text with replacement(value) in place of each of the three values that
// JSON lacks, which stand outside of strings.
std::string replace_python_values(
    std::string_view text,
    const std::function<std::string(std::string_view)>& replacement);

// The three values that JSON lacks become text ("NaN"), so that nothing takes
// them for a number. Throws DataError as JsonDocument does.
nlohmann::json parse_python_json(
    std::string_view text,
    const JsonSource& source);

}  // namespace brigade
