// BRIGADE_ASSERT: our own bug, never reachable from input. Prints the
// expression, the place and a message with values, then aborts.
//
//   BRIGADE_ASSERT(offset <= capacity, "offset {} of bucket {}", offset, id);
#pragma once

#include <fmt/format.h>

#include <string>

namespace brigade::detail {
[[noreturn]] void assert_failed(
    const char* expression,
    const char* file,
    int line,
    const std::string& message);
}  // namespace brigade::detail

#define BRIGADE_ASSERT(condition, ...)                                    \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::brigade::detail::assert_failed(                                   \
          #condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
