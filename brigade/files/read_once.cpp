#include "brigade/files/read_once.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace brigade {

namespace fs = std::filesystem;

bool is_standard_input(const fs::path& path) {
  return path == "-" || path == "/dev/stdin" || path == "/dev/fd/0" ||
         path == "/proc/self/fd/0";
}

bool is_standard_input_closed() {
  struct stat status {};
  struct stat null {};
  const int flags = ::fcntl(STDIN_FILENO, F_GETFL);
  if (flags < 0)
    return true;
  // A terminal is open for both, too.
  return (flags & O_ACCMODE) == O_RDWR && ::fstat(STDIN_FILENO, &status) == 0 &&
         ::stat("/dev/null", &null) == 0 && S_ISCHR(status.st_mode) &&
         status.st_rdev == null.st_rdev;
}

std::string input_name(const fs::path& path) {
  return is_standard_input(path) ? "standard input" : path.string();
}

bool is_open_input(const fs::path& path) {
  return is_standard_input(path) || path.parent_path() == "/dev/fd" ||
         path.parent_path() == "/proc/self/fd";
}

bool is_read_once(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return is_open_input(path) ||
         (fs::exists(status) && !fs::is_regular_file(status) &&
          !fs::is_directory(status));
}

}  // namespace brigade
