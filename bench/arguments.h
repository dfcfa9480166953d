// The benchmarks' command lines.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <exception>
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

// What run() returns, or 1 after a line with what it threw.
template <typename Run>
int exit_code_of(const Run& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

}  // namespace brigade::bench
