#include "brigade/json/python_json.h"

#include <string>

namespace brigade {

std::string replace_python_values(
    std::string_view text,
    const std::function<std::string(std::string_view)>& replacement) {
  std::string result;
  bool is_in_text = false;
  for (size_t at = 0; at < text.size();) {
    size_t length = 1;
    bool is_value = false;
    if (is_in_text) {
      length = text[at] == '\\' && at + 1 < text.size() ? 2 : 1;
      is_in_text = text[at] != '"';
    } else if (text[at] == '"') {
      is_in_text = true;
    } else {
      for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
        if (!text.substr(at).starts_with(word))
          continue;
        length = word.size();
        is_value = true;
      }
    }
    const std::string_view part = text.substr(at, length);
    result += is_value ? replacement(part) : std::string(part);
    at += length;
  }
  return result;
}

nlohmann::json parse_python_json(
    std::string_view text,
    const JsonSource& source) {
  const std::string quoted = replace_python_values(
      text,
      [](std::string_view value) { return "\"" + std::string(value) + "\""; });
  const JsonDocument document(quoted, source, {.last_key_counts = true});
  return document.root().value();
}

}  // namespace brigade
