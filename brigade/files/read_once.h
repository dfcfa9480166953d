// Input that can be read only once, by one process.
#pragma once

#include <filesystem>
#include <string>

namespace brigade {

// "-" (standard input), the name of a descriptor such as /dev/stdin, or what is
// neither a file nor a folder: other ranks cannot read it as well.
bool is_read_once(const std::filesystem::path& path);

// "-" or the name of a descriptor alone: a pipe (FIFO) that lies in a folder
// would be waited for, and is refused where a small file is read.
bool is_open_input(const std::filesystem::path& path);

// Whether it is standard input, by whatever name.
bool is_standard_input(const std::filesystem::path& path);

// Whether standard input was closed when the program started: see
// launch/program_start.h, which opens /dev/null in its place.
bool is_standard_input_closed();

// As messages name it: "standard input", or the path.
std::string input_name(const std::filesystem::path& path);

}  // namespace brigade
