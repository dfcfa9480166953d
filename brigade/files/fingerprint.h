// A quick look at a large file, to notice that two hosts have different ones.
#pragma once

#include <filesystem>
#include <string>

namespace brigade {

// "1234 bytes, digest 0123456789abcdef": the size, and the first 16 digits of
// the SHA-256 of the first and the last 64 KiB. Reads no more than those.
// Throws DataError naming the path.
std::string fingerprint_of_file(const std::filesystem::path& path);

}  // namespace brigade
