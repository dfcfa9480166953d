# What is installed and packaged: headers, the three static libraries,
# find_package(brigade) and pkg-config, and the program. `cmake --install`
# installs all of it, CPack makes two Debian packages: libbrigade-dev and brigade.
include(CMakePackageConfigHelpers)

# The library's own targets. brigade_flags (our warnings) is not installed.
install(TARGETS brigade brigade_io brigade_core brigade_torch brigade_kernels
  EXPORT brigade
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT brigade
  FILE brigade-targets.cmake
  NAMESPACE brigade::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/brigade
  COMPONENT development)
configure_package_config_file(
  cmake/brigade-config.cmake.in brigade-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/brigade)
write_basic_package_version_file(brigade-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/brigade-config.cmake
  ${PROJECT_BINARY_DIR}/brigade-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/brigade
  COMPONENT development)

# Public headers: those of the modules, less the kernels' inside and the
# program's own wiring.
install(DIRECTORY brigade
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development
  FILES_MATCHING PATTERN "*.h"
  PATTERN "brigade/kernels" EXCLUDE
  PATTERN "brigade/train" EXCLUDE
  REGEX "brigade/run/(dry_run|model_units|part_use|resume_|run_)" EXCLUDE
  PATTERN "brigade/generate" EXCLUDE
  PATTERN "brigade/evaluate" EXCLUDE
  PATTERN "brigade/doctor" EXCLUDE
  PATTERN "brigade/report" EXCLUDE
  PATTERN "brigade/hub/curl_library.h" EXCLUDE
  PATTERN "brigade/ops/rows.h" EXCLUDE
  PATTERN "brigade/ops/carried.h" EXCLUDE)

# pkg-config knows libtorch only by its folders.
set(pc_torch_cflags "")
foreach(folder IN LISTS TORCH_INCLUDE_DIRS)
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    string(APPEND pc_torch_cflags " -isystem ${folder}")
  endif()
endforeach()
set(pc_torch_libs "-ltorch -ltorch_cpu -lc10")
if(TARGET torch_cuda)
  # The runtime, which our kernels call, is found where the toolkit is.
  get_filename_component(cudart_folder "${CUDA_cudart_LIBRARY}" DIRECTORY)
  string(APPEND pc_torch_libs " -ltorch_cuda -lc10_cuda"
    " ${CUDA_cudart_LIBRARY} -Wl,-rpath,${cudart_folder}")
endif()
get_filename_component(torch_folder "${TORCH_LIBRARY}" DIRECTORY)
if(torch_folder AND NOT torch_folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  # Only a PyTorch of Python lies elsewhere: see cmake/dependencies.cmake.
  string(PREPEND pc_torch_libs "-Wl,--allow-shlib-undefined -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state -L${torch_folder} -Wl,-rpath,${torch_folder} ")
endif()
set(pc_dnnl_libs "-ldnnl")
# The copy of oneDNN beside which a PyTorch of Python may have another.
if(BRIGADE_TORCH)
  install(FILES ${DNNL_LIBRARY}
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/brigade COMPONENT development)
  set(pc_dnnl_libs
    "\${libdir}/brigade/${dnnl_name} -Wl,-rpath,\${libdir}/brigade")
endif()
string(REPLACE ";" " " pc_sentencepiece_libs "${sentencepiece_linked}")
set(pc_mpi_libs "")
if(BRIGADE_MPI)
  string(JOIN " " pc_mpi_libs ${MPI_CXX_LIBRARIES})
endif()
file(RELATIVE_PATH pc_prefix
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/brigade.pc.in brigade.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/brigade.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)

if(TARGET brigade_cli)
  # Of a libtorch from elsewhere the program says where it is.
  if(BRIGADE_TORCH)
    set_target_properties(brigade_torch_cli PROPERTIES
      INSTALL_RPATH "$ORIGIN/../../${CMAKE_INSTALL_LIBDIR}/brigade"
      INSTALL_RPATH_USE_LINK_PATH ON)
    install(FILES ${DNNL_LIBRARY}
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/brigade COMPONENT program)
  endif()
  install(TARGETS brigade_cli
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  install(TARGETS brigade_torch_cli
    RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/brigade COMPONENT program)
  install(DIRECTORY ${shell_help}/man/
    DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
  # Where Debian's packages of the three shells look.
  install(FILES ${shell_help}/brigade COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
  install(FILES ${shell_help}/_brigade COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions)
  install(FILES ${shell_help}/brigade.fish COMPONENT program
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d)
endif()
foreach(package brigade libbrigade-dev)
  set(component program)
  if(package STREQUAL "libbrigade-dev")
    set(component development)
  endif()
  install(FILES LICENSE
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}
    COMPONENT ${component} RENAME copyright)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "The Brigade authors")
set(CPACK_PACKAGE_CONTACT "The Brigade authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME brigade)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
# By being installed it takes the place of the reference BLAS, which is 30
# times slower.
# libsentencepiece and libcurl are loaded late, so that the linker does not know
# of them.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS
  "libopenblas0-pthread, libsentencepiece0, libcurl4")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Pre-trains Llama-like language models.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libbrigade-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# A static library leaves it to its user to link these; libtorch, oneDNN and
# Highway have to be those it was compiled for.
string(JOIN ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  libtorch-dev libopenblas0-pthread libhwy-dev libdnnl-dev libfmt-dev
  nlohmann-json3-dev libpcre2-dev libutf8proc-dev
  libsentencepiece0 libcurl4 libzstd-dev zlib1g-dev libssl-dev
  pkg-config)
if(sentencepiece_linked)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    ", libsentencepiece-dev, libabsl-dev")
endif()
if(BRIGADE_MPI)
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", libopenmpi-dev")
endif()
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Data, tensor, pipeline and context parallelism for any libtorch module.")
include(CPack)
