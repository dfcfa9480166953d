# Everything Brigade stands on; README.md says why each is here. All of it comes
# from Debian packages (scripts/install_dependencies.sh).
find_package(Torch REQUIRED)
find_package(OpenMP REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CURL REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sentencepiece REQUIRED sentencepiece)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)

# libtorch with its headers as system headers, plus the OpenMP that its
# at::parallel_for expands to in our own translation units.
add_library(brigade_torch INTERFACE)
target_include_directories(brigade_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(brigade_torch INTERFACE
  ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)

# The kernels' libraries: Highway for SIMD, oneDNN for matrix products.
add_library(brigade_kernels INTERFACE)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
# Not find_package(dnnl): Debian's config demands OpenCL, which we do not use.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
target_include_directories(brigade_kernels SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(brigade_kernels INTERFACE PkgConfig::hwy ${DNNL_LIBRARY})
