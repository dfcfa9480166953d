#include "brigade/run/find_damage.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/files/digest.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// "": nothing.
std::string damage_of(
    const fs::path& file,
    const FileDigest& expected,
    VerifyLevel level,
    const std::function<void(uint64_t)>& on_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    return fmt::format("'{}' is missing", file.string());
  const uint64_t size_bytes = fs::file_size(file, error);
  if (error || size_bytes != expected.size_bytes) {
    return fmt::format(
        "'{}' has {} bytes, but {} were written",
        file.string(),
        size_bytes,
        expected.size_bytes);
  }
  if (level == VerifyLevel::kSize)
    return {};
  try {
    const std::string actual = sha256_of_file(file, on_bytes);
    if (actual == expected.sha256)
      return {};
    return fmt::format(
        "'{}' was changed after it was written: its SHA-256 is {}..., but "
        "{}... was written",
        file.string(),
        actual.substr(0, 12),
        expected.sha256.substr(0, 12));
  } catch (const DataError& failure) {
    return failure.what();
  }
}

}  // namespace

std::vector<std::string> find_damage(
    const fs::path& directory,
    const CheckpointManifest& manifest,
    VerifyLevel level,
    int part,
    int parts,
    const HashProgress& on_progress) {
  std::vector<std::string> damage;
  uint64_t total_bytes = 0;
  uint64_t done_bytes = 0;
  int counted = 0;
  for (const auto& [name, expected] : manifest.contents) {
    if (counted++ % parts == part)
      total_bytes += expected.size_bytes;
  }
  std::function<void(uint64_t)> on_bytes;
  if (on_progress) {
    on_bytes = [&](uint64_t bytes) {
      on_progress(done_bytes += bytes, total_bytes);
    };
  }
  int index = 0;
  for (const auto& [name, expected] : manifest.contents) {
    if (index++ % parts != part)
      continue;
    std::string found = damage_of(directory / name, expected, level, on_bytes);
    if (!found.empty())
      damage.push_back(std::move(found));
  }
  return damage;
}

}  // namespace brigade
