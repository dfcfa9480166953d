// What is refused where a file or a folder is named: links that lead in a
// circle, and what is no file where one is read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace brigade {

// The part of the path that is a loop of links, if there is one.
std::optional<std::filesystem::path> loop_in(const std::filesystem::path& path);

// "Too many levels of symbolic links: 'PATH'".
std::string describe_loop(const std::filesystem::path& loop);

// Throws DataError that names the loop.
void refuse_loop(const std::filesystem::path& path);

// Whether a file is there. Throws DataError for a loop of links and for what is
// no file: reading a pipe (FIFO) would wait for its writer.
bool has_file(const std::filesystem::path& path);

}  // namespace brigade
