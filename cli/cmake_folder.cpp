#include "cli/cmake_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "brigade/base/error.h"

namespace brigade::cli {

namespace fs = std::filesystem;

void print_cmake_folder() {
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  // Relative to the program's folder, as both are installed.
  const fs::path folder = (bin / BRIGADE_CMAKE_FOLDER).lexically_normal();
  std::error_code error;
  if (!fs::exists(folder / "brigade-config.cmake", error)) {
    throw Error(
        ExitCode::kConfig,
        fmt::format(
            "the C++ library is not installed beside this program: '{}' has no "
            "brigade-config.cmake; install the package libbrigade-dev, the "
            "wheel, or a build (cmake --install)",
            folder.string()));
  }
  fmt::print("{}\n", folder.string());
}

}  // namespace brigade::cli
