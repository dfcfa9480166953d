// Messages about a command line that CLI11 refuses, in Brigade's words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace brigade::cli {

// One sentence: the command, the option and its value, and for an unknown name
// the nearest one that there is. After app.parse() threw `error`.
std::string explain_parse_error(
    const CLI::App& app,
    const CLI::ParseError& error);

// What to say about a first word that is no command; "": it is one.
std::string check_command(const CLI::App& app, const std::string& name);

}  // namespace brigade::cli
