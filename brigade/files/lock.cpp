#include "brigade/files/lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* what, const fs::path& path, int error) {
  throw StorageError(fmt::format(
      "[file_lock] cannot {} '{}': {}",
      what,
      path.string(),
      std::strerror(error)));
}

}  // namespace

bool is_current(const Descriptor& locked, const fs::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(locked.get(), &mine) == 0 &&
         ::stat(path.c_str(), &named) == 0 && mine.st_dev == named.st_dev &&
         mine.st_ino == named.st_ino;
}

FileLock::FileLock(fs::path path, File file, Descriptor descriptor)
    : path_(std::move(path)), file_(file), descriptor_(std::move(descriptor)) {}

FileLock::~FileLock() {
  if (descriptor_.is_open() && file_ == File::kRemove)
    ::unlink(path_.c_str());
}

std::optional<FileLock>
FileLock::acquire(const fs::path& path, File file, int operation) {
  while (true) {
    Descriptor descriptor(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!descriptor.is_open())
      fail("create", path, errno);
    int result = 0;
    do {
      result = ::flock(descriptor.get(), operation);
    } while (result != 0 && errno == EINTR);
    const int error = errno;
    if (result == 0 && is_current(descriptor, path))
      return FileLock(path, file, std::move(descriptor));
    if (result != 0 && error == EWOULDBLOCK)
      return std::nullopt;
    if (result != 0)
      fail("lock", path, error);
  }
}

FileLock FileLock::wait(const fs::path& path, File file) {
  return std::move(*acquire(path, file, LOCK_EX));
}

std::optional<FileLock> FileLock::try_lock(const fs::path& path, File file) {
  return acquire(path, file, LOCK_EX | LOCK_NB);
}

}  // namespace brigade
