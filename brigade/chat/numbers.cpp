#include "brigade/chat/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace brigade::jinja {
namespace {

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}

// Without the white space around it, a + in front and _ between digits.
std::optional<std::string> bare_number(const Text& text) {
  const std::string stripped = strip(text, Sides::kBoth).bytes();
  std::string_view rest = stripped;
  if (rest.starts_with('+')) {
    rest.remove_prefix(1);
    if (rest.starts_with('-'))
      return std::nullopt;
  }
  std::string result;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] != '_') {
      result += rest[i];
      continue;
    }
    const bool is_between = i > 0 && i + 1 < rest.size() &&
                            is_ascii_digit(rest[i - 1]) &&
                            is_ascii_digit(rest[i + 1]);
    if (!is_between)
      return std::nullopt;
  }
  return result;
}

}  // namespace

std::optional<Value> whole_from_text(const Text& text) {
  const auto bare = bare_number(text);
  const bool is_negative = bare && bare->starts_with('-');
  const std::string digits = bare ? bare->substr(is_negative ? 1 : 0) : "";
  if (digits.empty() ||
      !std::all_of(digits.begin(), digits.end(), is_ascii_digit))
    return std::nullopt;
  int64_t value = 0;
  const char* const end = bare->data() + bare->size();
  if (std::from_chars(bare->data(), end, value).ec == std::errc())
    return value;
  return LargeInteger{
      (is_negative ? "-" : "") + digits.substr(digits.find_first_not_of('0'))};
}

std::optional<double> float_from_text(const Text& text) {
  const auto bare = bare_number(text);
  // from_chars() takes "nan(...)".
  if (!bare || bare->find('(') != std::string::npos)
    return std::nullopt;
  double value = 0;
  const char* const end = bare->data() + bare->size();
  const auto parsed = std::from_chars(bare->data(), end, value);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument)
    return std::nullopt;
  // Infinity, or 0.
  if (parsed.ec == std::errc::result_out_of_range)
    return std::strtod(bare->c_str(), nullptr);
  return value;
}

Value whole_part(double value) {
  const double whole = std::trunc(value);
  constexpr double kBeyond = 0x1p63;
  if (whole >= -kBeyond && whole < kBeyond)
    return static_cast<int64_t>(whole);
  return LargeInteger{fmt::format("{:.0f}", whole)};
}

}  // namespace brigade::jinja
