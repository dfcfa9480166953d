// Paths on the command line: what no command takes is refused by all alike.
#pragma once

#include <CLI/CLI.hpp>

namespace brigade::cli {

// Of every option of every command that names a file or a folder: an empty name
// is refused, and a loop of links is named, as wrong input (exit code 4), as a
// wrong config (2), or as an output that cannot be written (6).
void check_path_options(CLI::App& app);

}  // namespace brigade::cli
