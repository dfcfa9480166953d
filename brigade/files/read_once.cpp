#include "brigade/files/read_once.h"

namespace brigade {

namespace fs = std::filesystem;

bool is_read_once(const fs::path& path) {
  const bool is_descriptor = path == "-" || path == "/dev/stdin" ||
                             path.parent_path() == "/dev/fd" ||
                             path.parent_path() == "/proc/self/fd";
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return is_descriptor || (fs::exists(status) && !fs::is_regular_file(status) &&
                           !fs::is_directory(status));
}

}  // namespace brigade
