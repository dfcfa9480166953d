#include "brigade/files/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "brigade/base/error.h"

namespace brigade {

void LineFile::open(const std::filesystem::path& path) {
  path_ = path;
  // Not to wait for the reader of a pipe.
  descriptor_ = Descriptor(::open(
      path.c_str(),
      O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK,
      0666));
  struct stat status {};
  const bool is_file =
      descriptor_.is_open()
          ? ::fstat(descriptor_.get(), &status) == 0 && S_ISREG(status.st_mode)
          : errno != ENXIO;
  if (!is_file)
    throw StorageError(
        fmt::format("[file] '{}' is not a regular file", path.string()));
  if (!descriptor_.is_open())
    throw StorageError(fmt::format(
        "[file] cannot open '{}' for writing: {}",
        path.string(),
        std::strerror(errno)));
  write_waiting();
}

void LineFile::append(std::string_view line) {
  waiting_ += line;
  waiting_ += '\n';
  if (descriptor_.is_open())
    write_waiting();
}

void LineFile::write_waiting() {
  while (!waiting_.empty()) {
    const ssize_t count =
        ::write(descriptor_.get(), waiting_.data(), waiting_.size());
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      throw StorageError(fmt::format(
          "[file] cannot append to '{}': {}",
          path_.string(),
          std::strerror(errno)));
    waiting_.erase(0, static_cast<size_t>(count));
  }
}

}  // namespace brigade
