// What some programs write in front of UTF-8, and what is no part of the text.
#pragma once

#include <string_view>

namespace brigade {
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
}  // namespace brigade
