# Flags of our own targets (never exported), the linker, sanitizers.
add_library(brigade_flags INTERFACE)
target_compile_options(brigade_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wnon-virtual-dtor
  $<$<BOOL:${BRIGADE_WARNINGS_AS_ERRORS}>:-Werror>
  # In a unity build a file's own names are global to the next file.
  $<IF:$<BOOL:${BRIGADE_UNITY}>,-Wshadow=local,-Wshadow>
  -Wno-missing-field-initializers -Wno-unknown-pragmas
  # False alarms of GCC 12 inside its own <string> at -O3.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow -Wno-restrict -Wno-array-bounds>)
# libtorch is built with NDEBUG, and without it its headers give classes other
# members (at::RecordFunction): a debug build would read beside them.
target_compile_definitions(brigade_flags INTERFACE
  $<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:NDEBUG>)

# For code in which a step of training spends no time: -O1, at which GCC warns of
# variables that it does not see set.
set(brigade_light_optimisation
  $<$<CONFIG:Release>:-O1> -Wno-maybe-uninitialized)
# Sources of a library at that, compiled apart with what it links and includes.
function(brigade_add_light_part library)
  set(part ${library}_light)
  add_library(${part} OBJECT ${ARGN})
  brigade_unity_groups(${part})
  foreach(property LINK_LIBRARIES INCLUDE_DIRECTORIES COMPILE_DEFINITIONS)
    get_target_property(value ${library} ${property})
    if(value)
      set_property(TARGET ${part} PROPERTY ${property} ${value})
    endif()
  endforeach()
  target_compile_options(${part} PRIVATE ${brigade_light_optimisation})
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${part}>)
endfunction()

# GCC collects its own garbage late: a tenth of a unit's time on libtorch, for a
# tenth more memory.
add_compile_options(
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=400;--param=ggc-min-heapsize=1000000>")

find_program(BRIGADE_MOLD mold)
find_program(BRIGADE_LLD ld.lld)
if(CMAKE_CROSSCOMPILING)
  # The compiler's own: it looks for others under names of its target.
elseif(BRIGADE_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(BRIGADE_LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(BRIGADE_SANITIZE)
  add_compile_options(
    -fsanitize=${BRIGADE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=undefined
    # vptr checks want the type_info of classes in a library that is loaded
    # late (brigade/tokenizer/sentencepiece_library.cpp).
    -fno-sanitize=vptr)
  add_link_options(-fsanitize=${BRIGADE_SANITIZE})
endif()

find_program(BRIGADE_CCACHE ccache)
if(BRIGADE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these two; the rest makes hits across checkouts.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${BRIGADE_CCACHE})
endif()
set(CMAKE_PCH_INSTANTIATE_TEMPLATES ON)
