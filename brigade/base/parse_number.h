// A text that is one number.
//
// PURE.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace brigade {

// std::nullopt where it is no number, has more behind it, or does not fit.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && parsed == end ? std::optional(number)
                                               : std::nullopt;
}

}  // namespace brigade
