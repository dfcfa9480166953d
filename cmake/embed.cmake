# brigade_embed(TARGET NAME FILE): a source of TARGET that defines
# brigade::embedded::NAME, a std::string_view of the file's bytes (declared in
# brigade/base/embedded.h).
function(brigade_embed target name file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "((0x..,){16})" "\\1\n" bytes "${bytes}")
  set(source ${PROJECT_BINARY_DIR}/embedded/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT
"#include \"brigade/base/embedded.h\"

namespace brigade::embedded {
namespace {
const unsigned char kBytes[] = {
${bytes}};
}  // namespace
const std::string_view ${name}(
    reinterpret_cast<const char*>(kBytes), sizeof(kBytes));
}  // namespace brigade::embedded
" @ONLY)
  target_sources(${target} PRIVATE ${source})
  set_source_files_properties(${source} PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
endfunction()
