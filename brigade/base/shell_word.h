// Text as one word of a shell's command line, for commands that people copy and
// for scripts.
//
// PURE.
#pragma once

#include <string>
#include <string_view>

namespace brigade {

// Quoted, so that the shell leaves it as it is.
std::string shell_quoted(std::string_view text);

// The same, without quotes where it needs none.
std::string shell_word(std::string_view text);

// The same for a path that stands alone: "./-a" for one that would be an
// option.
std::string shell_path(std::string_view path);

}  // namespace brigade
