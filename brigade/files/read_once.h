// Input that can be read only once, by one process.
#pragma once

#include <filesystem>

namespace brigade {

// "-" (standard input), the name of a descriptor such as /dev/stdin, or what is
// neither a file nor a folder: other ranks cannot read it as well.
bool is_read_once(const std::filesystem::path& path);

}  // namespace brigade
