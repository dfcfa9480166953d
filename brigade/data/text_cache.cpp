#include "brigade/data/text_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <string>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/files/lock.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The names that text_tokens.cpp gives: 32 digits of a digest.
bool is_text_key(const std::string& name) {
  return name.size() == 32 &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

void remove_unless_locked(const fs::path& tokens) {
  try {
    const auto lock =
        FileLock::try_lock(tokens / "lock", FileLock::File::kRemove);
    std::error_code ignored;
    if (lock)
      fs::remove_all(tokens, ignored);
  } catch (const StorageError&) {
    // Somebody else's, or read-only.
  }
}

}  // namespace

void mark_used(const fs::path& tokens) {
  // It need not succeed: a shared cache may be somebody else's.
  ::utimensat(AT_FDCWD, tokens.c_str(), nullptr, 0);
}

void remove_unused(const fs::path& cache) {
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  auto entry = fs::directory_iterator(cache, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const auto used = fs::last_write_time(entry->path(), gone);
    if (gone || now - used < kTextCacheKept ||
        !fs::is_directory(entry->symlink_status(gone)) ||
        !is_text_key(entry->path().filename().string()))
      continue;
    remove_unless_locked(entry->path());
  }
}

}  // namespace brigade
