#include "brigade/files/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/files/digest.h"

namespace brigade {

std::string fingerprint_of_file(const std::filesystem::path& path) {
  constexpr uint64_t kEndBytes = 64 * KiB;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto end = file.tellg();
  if (!file || end < 0)
    throw DataError(fmt::format("[files] cannot read '{}'", path.string()));
  const auto size = static_cast<uint64_t>(end);
  const uint64_t length = std::min(size, kEndBytes);
  Sha256 hash;
  std::vector<char> bytes(length);
  for (const uint64_t begin : {uint64_t{0}, size - length}) {
    file.seekg(static_cast<std::streamoff>(begin));
    file.read(bytes.data(), static_cast<std::streamsize>(length));
    if (!file)
      throw DataError(fmt::format(
          "[files] cannot read {} bytes at offset {} of '{}'",
          length,
          begin,
          path.string()));
    hash.add(bytes.data(), length);
  }
  return fmt::format("{} bytes, digest {}", size, hash.finish().substr(0, 16));
}

}  // namespace brigade
