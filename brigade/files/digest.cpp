#include "brigade/files/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <memory>
#include <string_view>

#include "brigade/base/check.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

std::string digest(
    const EVP_MD* algorithm,
    std::string_view prefix,
    const MappedFile& file) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  unsigned char bytes[EVP_MAX_MD_SIZE] = {};
  unsigned size = 0;
  const bool done =
      context != nullptr &&
      EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1 &&
      EVP_DigestUpdate(context.get(), prefix.data(), prefix.size()) == 1 &&
      EVP_DigestUpdate(
          context.get(), file.bytes().data(), file.bytes().size()) == 1 &&
      EVP_DigestFinal_ex(context.get(), bytes, &size) == 1;
  BRIGADE_ASSERT(done, "libcrypto does not compute a hash");
  std::string hexadecimal;
  for (unsigned i = 0; i < size; ++i)
    hexadecimal += fmt::format("{:02x}", bytes[i]);
  return hexadecimal;
}

}  // namespace

std::string sha256_of_file(const std::filesystem::path& path) {
  return digest(EVP_sha256(), {}, MappedFile(path));
}

std::string git_blob_sha1_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string prefix = fmt::format("blob {}", file.size_bytes());
  prefix += '\0';
  return digest(EVP_sha1(), prefix, file);
}

}  // namespace brigade
