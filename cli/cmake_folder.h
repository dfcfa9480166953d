// brigade --cmake-dir: where find_package(brigade) finds the C++ library that
// is installed beside this program.
#pragma once

namespace brigade::cli {

// Prints the folder. Throws Error where the library is not installed.
void print_cmake_folder();

}  // namespace brigade::cli
