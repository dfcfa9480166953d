// Where users want their results: a file that is whole or absent, as everywhere
// (file.h), or a device or pipe such as /dev/stdout, which is written in place.
#pragma once

#include <filesystem>
#include <string_view>

namespace brigade {

// Whether the path is there and neither a file nor a folder, or is a name of an
// open descriptor (/dev/stdout, /dev/fd/3).
bool is_written_in_place(const std::filesystem::path& path);

// Precondition: is_written_in_place(). Throws StorageError.
void write_in_place(const std::filesystem::path& path, std::string_view text);

// What a link leads to, there or not; the path itself if it is no link. Throws
// StorageError for a loop of links.
std::filesystem::path link_target(const std::filesystem::path& path);

// Throws StorageError where write_text_file() could not write: before work
// whose result goes there. Leaves nothing. A named pipe (FIFO) must have its
// reader, who then waits until this process ends. Throws ConfigError for a file
// that holds something which does not begin with `beginning`, that of every
// such result: its name was given by mistake.
void check_writable(
    const std::filesystem::path& path,
    std::string_view beginning = "");

// The same for a folder that is to be made, with its parents.
void check_can_make(const std::filesystem::path& folder);

}  // namespace brigade
