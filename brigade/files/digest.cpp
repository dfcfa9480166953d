#include "brigade/files/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;

Context begin_digest(const EVP_MD* algorithm) {
  Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const bool has_begun =
      context != nullptr &&
      EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1;
  BRIGADE_ASSERT(has_begun, "libcrypto does not compute a hash");
  return context;
}

void add_to_digest(
    const Context& context,
    const void* data,
    uint64_t size_bytes) {
  const int done = EVP_DigestUpdate(context.get(), data, size_bytes);
  BRIGADE_ASSERT(done == 1, "libcrypto does not compute a hash");
}

std::string end_digest(const Context& context) {
  unsigned char bytes[EVP_MAX_MD_SIZE] = {};
  unsigned size = 0;
  const int done = EVP_DigestFinal_ex(context.get(), bytes, &size);
  BRIGADE_ASSERT(done == 1, "libcrypto does not compute a hash");
  std::string hexadecimal;
  for (unsigned i = 0; i < size; ++i)
    hexadecimal += fmt::format("{:02x}", bytes[i]);
  return hexadecimal;
}

}  // namespace

Sha256::Sha256() : context_(begin_digest(EVP_sha256())) {}

void Sha256::add(const void* data, uint64_t size_bytes) {
  add_to_digest(context_, data, size_bytes);
}

std::string Sha256::finish() {
  return end_digest(context_);
}

std::string sha256_of_text(std::string_view text) {
  Sha256 hash;
  hash.add(text.data(), text.size());
  return hash.finish();
}

std::string sha256_of_file(
    const std::filesystem::path& path,
    const std::function<void(uint64_t bytes)>& on_bytes) {
  constexpr size_t kPieceBytes = size_t{16} << 20;
  const MappedFile file(path);
  Sha256 hash;
  for (size_t at = 0; at < file.bytes().size(); at += kPieceBytes) {
    const auto piece = file.bytes().subspan(
        at, std::min(kPieceBytes, file.bytes().size() - at));
    hash.add(piece.data(), piece.size());
    if (on_bytes)
      on_bytes(piece.size());
  }
  return hash.finish();
}

std::string git_blob_sha1_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string prefix = fmt::format("blob {}", file.size_bytes());
  const Context context = begin_digest(EVP_sha1());
  add_to_digest(context, prefix.c_str(), prefix.size() + 1);  // and its zero
  add_to_digest(context, file.bytes().data(), file.bytes().size());
  return end_digest(context);
}

}  // namespace brigade
