// Text files that are read whole: prompts, tasks, a text to evaluate. They are
// read as `prepare` reads them, so that the same file has the same text there.
#pragma once

#include <filesystem>
#include <string>

namespace brigade {

// The file's text ("-": standard input), decompressed, without a byte order
// mark; line ends as they are. Throws DataError naming file, byte and line for
// what is not UTF-8.
std::string read_whole_text(const std::filesystem::path& path);

}  // namespace brigade
