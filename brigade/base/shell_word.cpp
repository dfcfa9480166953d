#include "brigade/base/shell_word.h"

#include <algorithm>
#include <cctype>

namespace brigade {

std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text)
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string shell_word(std::string_view text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./,:=+@%").find(static_cast<char>(c)) !=
               std::string_view::npos;
  };
  const bool needs_quotes =
      text.empty() || !std::all_of(text.begin(), text.end(), is_plain);
  return needs_quotes ? shell_quoted(text) : std::string(text);
}

std::string shell_path(std::string_view path) {
  return shell_word((path.starts_with('-') ? "./" : "") + std::string(path));
}

}  // namespace brigade
