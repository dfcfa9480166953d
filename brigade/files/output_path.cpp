#include "brigade/files/output_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/usual_path.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_output(const char* what, const fs::path& path) {
  throw StorageError(fmt::format(
      "[file] cannot {} '{}': {}", what, path.string(), std::strerror(errno)));
}

// The descriptor of /dev/stdout, /dev/fd/3 and the like; -1 for other paths.
// Opened by name, a file to which standard output goes would be written from
// its beginning.
int named_descriptor(const fs::path& path) {
  const std::string text = path.string();
  if (text == "/dev/stdout")
    return STDOUT_FILENO;
  if (text == "/dev/stderr")
    return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (text.starts_with(folder))
      return parse_number<int>(text.substr(folder.size())).value_or(-1);
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
  Descriptor descriptor(
      named >= 0 ? ::fcntl(named, F_DUPFD_CLOEXEC, 0)
                 : ::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!descriptor.is_open())
    throw_output("open", path);
  if (!descriptor.write(std::as_bytes(std::span(text))))
    throw_output("write", path);
  if (!descriptor.close())
    throw_output("close", path);
}

fs::path link_target(const fs::path& path) {
  if (const auto loop = loop_in(path))
    throw StorageError(describe_loop(*loop));
  fs::path target = path;
  std::error_code error;
  while (fs::is_symlink(target, error))
    target = target.parent_path() / fs::read_symlink(target);
  return target;
}

namespace {

// The descriptor stays open: closed, it would end the reader.
void check_reader(const fs::path& pipe) {
  if (::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC) >= 0)
    return;
  if (errno != ENXIO)
    throw_output("write", pipe);
  throw StorageError(fmt::format(
      "[file] cannot write '{}': it is a pipe (FIFO) that nobody reads; start "
      "its reader first, or name a file",
      pipe.string()));
}

// Whether the file does; true where there is none, or an empty one.
bool begins_with(const fs::path& path, std::string_view beginning) {
  std::ifstream file(path, std::ios::binary);
  std::string head(beginning.size(), '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return head.empty() || head == beginning;
}

}  // namespace

void check_writable(const fs::path& named, std::string_view beginning) {
  const fs::path path = link_target(named);
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    throw_output("write", path);
  }
  if (is_written_in_place(path)) {
    if (named_descriptor(path) < 0 && S_ISFIFO(status.st_mode))
      return check_reader(path);
    // Opening a pipe would wait for its reader, and then end it.
    if (named_descriptor(path) < 0 && ::access(path.c_str(), W_OK) != 0)
      throw_output("write", path);
    return;
  }
  const std::string tried = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  Descriptor descriptor(
      ::open(tried.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!descriptor.is_open())
    throw_output("write", path);
  descriptor.close();
  ::unlink(tried.c_str());
  if (!begins_with(path, beginning))
    throw ConfigError(fmt::format(
        "[file] '{}' holds something else than such a result, which begins "
        "with {}: it is not replaced; give another path",
        path.string(),
        beginning));
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
