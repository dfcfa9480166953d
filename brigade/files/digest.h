// Hashes of contents: SHA-256, by which checkpoints are verified, and the two
// by which a Hugging Face hub names the content of a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace brigade {

// SHA-256 of bytes that come one piece after another.
class Sha256 {
 public:
  Sha256();
  void add(const void* data, uint64_t size_bytes);
  // Lower-case hexadecimal of all pieces. Call it once, last.
  std::string finish();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

std::string sha256_of_text(std::string_view text);

// Lower-case hexadecimal. `on_bytes`, unless empty, is called with the size of
// each piece once it is hashed. DataError when the file cannot be read.
std::string sha256_of_file(
    const std::filesystem::path& path,
    const std::function<void(uint64_t bytes)>& on_bytes = {});
// git's name for the file's content: sha1("blob SIZE\0" + content).
std::string git_blob_sha1_of_file(const std::filesystem::path& path);

}  // namespace brigade
