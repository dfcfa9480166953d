// JSON as a config file must be: valid, and no key twice in an object (of which
// a plain parser silently keeps the last). Nesting is limited, because values
// are printed and destroyed by recursion.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

// std::nullopt after a syntax error, told with line and column (in bytes, from
// 1). A duplicate key is a problem too, but the value that comes last is
// returned. Problems read "[config] NAME:LINE:COLUMN: ..." and
// "[config] /pointer (NAME): ...".
std::optional<nlohmann::json> parse_config_json(
    const std::string& text,
    const std::string& source_name,
    std::vector<std::string>& problems);

// Any JSON, or nothing: for values on the command line.
std::optional<nlohmann::json> parse_json_value(const std::string& text);

// One line, cut where it would fill the screen; any bytes.
std::string show_json(const nlohmann::json& value);

}  // namespace brigade
