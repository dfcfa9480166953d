#include "brigade/files/usual_path.h"

#include <fmt/format.h>

#include <system_error>

#include "brigade/base/error.h"

namespace brigade {

namespace fs = std::filesystem;

std::optional<fs::path> loop_in(const fs::path& path) {
  const auto is_loop = [](const fs::path& part) {
    std::error_code error;
    static_cast<void>(fs::status(part, error));
    return error == std::errc::too_many_symbolic_link_levels;
  };
  if (!is_loop(path))
    return std::nullopt;
  fs::path part;
  for (const fs::path& name : path) {
    part /= name;
    if (is_loop(part))
      break;
  }
  return part;
}

std::string describe_loop(const fs::path& loop) {
  return fmt::format("Too many levels of symbolic links: '{}'", loop.string());
}

void refuse_loop(const fs::path& path) {
  if (const auto loop = loop_in(path))
    throw DataError(describe_loop(*loop));
}

bool has_file(const fs::path& path) {
  refuse_loop(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return false;
  if (!fs::is_regular_file(status))
    throw DataError(
        fmt::format("[file] '{}' is not a regular file", path.string()));
  return true;
}

}  // namespace brigade
