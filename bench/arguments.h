// Numbers on the benchmarks' command lines.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "brigade/base/error.h"

namespace brigade::bench {

// A number above 0; throws ConfigError naming what it is and the text.
inline int positive_number(std::string_view what, std::string_view text) {
  int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    throw ConfigError(fmt::format(
        "[bench] {} = '{}': expected a whole number above 0", what, text));
  return value;
}

}  // namespace brigade::bench
