#include "brigade/files/output_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_output(const char* what, const fs::path& path) {
  throw StorageError(fmt::format(
      "[file] cannot {} '{}': {}", what, path.string(), std::strerror(errno)));
}

// Of /dev/stdout, /dev/fd/3 and the like; -1 for other paths. Opened by name, a
// file to which standard output goes would be written from its beginning.
int named_descriptor(const fs::path& path) {
  const std::string text = path.string();
  if (text == "/dev/stdout")
    return STDOUT_FILENO;
  if (text == "/dev/stderr")
    return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    int number = -1;
    const char* const end = text.data() + text.size();
    if (text.starts_with(folder) &&
        std::from_chars(text.data() + folder.size(), end, number).ptr == end)
      return number;
  }
  return -1;
}

}  // namespace

bool is_written_in_place(const fs::path& path) {
  struct stat status {};
  return named_descriptor(path) >= 0 ||
         (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
          !S_ISDIR(status.st_mode));
}

void write_in_place(const fs::path& path, std::string_view text) {
  const int named = named_descriptor(path);
  const int descriptor = named >= 0
                             ? ::fcntl(named, F_DUPFD_CLOEXEC, 0)
                             : ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw_output("open", path);
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0) {
      const int error = errno;
      ::close(descriptor);
      errno = error;
      throw_output("write", path);
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
  if (::close(descriptor) != 0)
    throw_output("close", path);
}

void check_writable(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    throw_output("write", path);
  }
  if (is_written_in_place(path)) {
    // Opening a pipe would wait for its reader, and then end it.
    if (named_descriptor(path) < 0 && ::access(path.c_str(), W_OK) != 0)
      throw_output("write", path);
    return;
  }
  const std::string tried = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  const int descriptor =
      ::open(tried.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0)
    throw_output("write", path);
  ::close(descriptor);
  ::unlink(tried.c_str());
}

void check_can_make(const fs::path& folder) {
  fs::path parent = fs::absolute(folder).lexically_normal();
  struct stat status {};
  while (::stat(parent.c_str(), &status) != 0) {
    if (errno != ENOENT || parent == parent.parent_path())
      throw_output("make", folder);
    parent = parent.parent_path();
  }
  if (!S_ISDIR(status.st_mode)) {
    errno = ENOTDIR;
    throw_output("make", folder);
  }
  // Not access(): root may do what the file system cannot.
  const fs::path tried = parent / fmt::format(".brigade-{}", ::getpid());
  if (::mkdir(tried.c_str(), S_IRWXU) != 0)
    throw_output("make", folder);
  ::rmdir(tried.c_str());
}

}  // namespace brigade
