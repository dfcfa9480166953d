// The two hashes by which a Hugging Face hub names the content of a file.
// Private to brigade/checkpoint.
#pragma once

#include <filesystem>
#include <string>

namespace brigade {

// Lower-case hexadecimal. DataError when the file cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);
// git's name for the file's content: sha1("blob SIZE\0" + content).
std::string git_blob_sha1_of_file(const std::filesystem::path& path);

}  // namespace brigade
