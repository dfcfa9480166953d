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

// Adds checks to every option of every command that names a file or a folder:
// an empty name is refused, and a loop of links is named, as wrong input (exit
// code 4), as a wrong config (2), or as an output that cannot be written (6).
void check_path_options(CLI::App& app);

}  // namespace brigade::cli
