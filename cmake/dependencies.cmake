# Everything Brigade stands on; README.md says why each is here. All of it comes
# from Debian packages (scripts/install_dependencies.sh).

# A libtorch from elsewhere: an unpacked libtorch, or the torch folder (or
# torch.utils.cmake_prefix_path) of a Python PyTorch. Empty: the system's.
set(BRIGADE_TORCH "" CACHE PATH "libtorch to build with; empty: the system's")
if(BRIGADE_TORCH)
  # First in the search, for libtorch's own parts as well.
  list(PREPEND CMAKE_PREFIX_PATH
    ${BRIGADE_TORCH} ${BRIGADE_TORCH}/share/cmake)
  # A CUDA build of libtorch has CMake try nvcc, with any standard that CMake
  # knows and any GPU that nvcc knows: our kernels name their own (brigade_cuda).
  set(CMAKE_CUDA_STANDARD 17)
  if(NOT TORCH_CUDA_ARCH_LIST)
    set(TORCH_CUDA_ARCH_LIST 9.0)
  endif()
  find_package(Torch REQUIRED)
else()
  find_package(Torch REQUIRED)
endif()
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "${TORCH_INSTALL_PREFIX} was built with the C++ ABI of before GCC 5, which "
    "the other libraries do not have: take a libtorch with the cxx11 ABI "
    "(PyTorch 2.7 and later have no other)")
endif()
# A PyTorch of Python brings headers of libraries that it has inside: they must
# not take the place of those that we link.
set(BRIGADE_TORCH_HAS_FMT OFF)
if(EXISTS ${TORCH_INSTALL_PREFIX}/include/fmt/format.h AND BRIGADE_TORCH)
  set(BRIGADE_TORCH_HAS_FMT ON)
endif()
find_package(OpenMP REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CURL REQUIRED)  # its headers: loaded late (hub/curl_library.h)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sentencepiece REQUIRED sentencepiece)
# One with a protobuf of its own inside is loaded late, in a scope of its own
# (brigade/tokenizer/sentencepiece_library.cpp). Since its functions return
# Abseil's Status it shares the system's protobuf, and is linked.
find_file(sentencepiece_header sentencepiece_processor.h REQUIRED
  HINTS ${sentencepiece_INCLUDE_DIRS})
file(STRINGS ${sentencepiece_header} sentencepiece_status REGEX "absl/status")
set(sentencepiece_linked "")
if(sentencepiece_status)
  foreach(name sentencepiece sentencepiece_train absl_status absl_strings)
    find_library(${name}_file ${name} REQUIRED)
    list(APPEND sentencepiece_linked ${${name}_file})
  endforeach()
endif()
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
# The server of `brigade report --live`. Debian compiles it with OpenSSL and
# brotli, of which its .pc file tells.
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)

# dygraphs draws the charts of `brigade report`; put into the program.
find_file(BRIGADE_dygraph_js dygraph.min.js REQUIRED
  PATHS /usr/share/javascript/dygraphs)
find_file(BRIGADE_dygraph_css dygraph.min.css REQUIRED
  PATHS /usr/share/javascript/dygraphs)

# MPI, for distributed.backend = "mpi": any, by its C interface.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS CXX)
option(BRIGADE_MPI
  "Process groups over MPI; on where one is found" ${MPI_CXX_FOUND})
if(BRIGADE_MPI AND NOT MPI_CXX_FOUND)
  message(FATAL_ERROR
    "BRIGADE_MPI is on, but there is no MPI here: install libopenmpi-dev (or "
    "libmpich-dev), or turn it off")
endif()

# libtorch with its headers as system headers, plus the OpenMP that its
# at::parallel_for expands to in our own translation units.
add_library(brigade_torch INTERFACE)
# Ours of oneDNN before those inside a PyTorch of Python.
if(BRIGADE_TORCH)
  file(GLOB dnnl_headers /usr/include/dnnl*.h* /usr/include/oneapi)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/dnnl)
  foreach(header IN LISTS dnnl_headers)
    get_filename_component(name ${header} NAME)
    file(CREATE_LINK ${header} ${PROJECT_BINARY_DIR}/dnnl/${name} SYMBOLIC)
  endforeach()
  target_include_directories(brigade_torch SYSTEM INTERFACE
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/dnnl>)
endif()
# Not installed: the targets of libtorch have them, and CMake installs no target
# whose headers lie in the source folder, as those of build/venv-* do.
target_include_directories(brigade_torch SYSTEM INTERFACE
  "$<BUILD_INTERFACE:${TORCH_INCLUDE_DIRS}>")
if(BRIGADE_TORCH_HAS_FMT)
  target_compile_definitions(brigade_torch INTERFACE FMT_HEADER_ONLY)
endif()
target_link_libraries(brigade_torch INTERFACE
  ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
# A PyTorch of Python finds its NCCL and cuDNN beside itself when it is loaded;
# the linker may find older ones of the system, and must not judge by them.
if(BRIGADE_TORCH)
  target_link_options(brigade_torch INTERFACE -Wl,--allow-shlib-undefined)
  # It also exports parts of the C++ library that it was linked with (2.11's
  # std::filesystem::remove_all() calls a null pointer): the system's come first.
  target_link_options(brigade_torch INTERFACE
    -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state)
endif()

# The kernels' libraries: Highway for SIMD, oneDNN for matrix products.
add_library(brigade_kernels INTERFACE)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
# Not find_package(dnnl): Debian's config demands OpenCL, which we do not use.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
if(BRIGADE_TORCH)
  # See the script: a PyTorch of Python has another oneDNN inside.
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(REAL_PATH ${DNNL_LIBRARY} dnnl_file)
  execute_process(
    COMMAND sh -c "readelf -d ${dnnl_file} | sed -n 's/.*SONAME.*\\[\\(.*\\)\\]/\\1/p'"
    OUTPUT_VARIABLE dnnl_name OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/bind_to_itself.py
      ${dnnl_file} ${PROJECT_BINARY_DIR}/lib/${dnnl_name}
    COMMAND_ERROR_IS_FATAL ANY)
  set(DNNL_LIBRARY ${PROJECT_BINARY_DIR}/lib/${dnnl_name} CACHE FILEPATH "" FORCE)
  # Installed beside the library (cmake/install.cmake).
  set(dnnl_installed "\${_IMPORT_PREFIX}/${CMAKE_INSTALL_LIBDIR}/brigade/${dnnl_name}")
else()
  set(dnnl_installed ${DNNL_LIBRARY})
endif()
target_include_directories(brigade_kernels SYSTEM INTERFACE
  $<BUILD_INTERFACE:${DNNL_INCLUDE_DIR}>)
target_link_libraries(brigade_kernels INTERFACE
  PkgConfig::hwy
  $<BUILD_INTERFACE:${DNNL_LIBRARY}> $<INSTALL_INTERFACE:${dnnl_installed}>)
