// An exclusive lock between processes: flock() on a file of its own, held while
// the object lives. The kernel releases it when its process ends, however it
// ends.
#pragma once

#include <filesystem>
#include <optional>

#include "brigade/files/descriptor.h"

namespace brigade {

class FileLock {
 public:
  // What becomes of the file when the lock is released.
  enum class File { kKeep, kRemove };

  // Waits for the process that holds it. Throws StorageError.
  static FileLock wait(const std::filesystem::path& path, File file);
  // std::nullopt, at once, when another process holds it. Throws StorageError.
  static std::optional<FileLock> try_lock(
      const std::filesystem::path& path,
      File file);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::filesystem::path path, File file, Descriptor descriptor);
  static std::optional<FileLock>
  acquire(const std::filesystem::path& path, File file, int operation);

  std::filesystem::path path_;
  File file_;
  Descriptor descriptor_;  // closed: moved from
};

// Whether the path still names the file that was locked: its owner may have
// removed it in between, and then this is a lock on nothing.
bool is_current(const Descriptor& locked, const std::filesystem::path& path);

}  // namespace brigade
