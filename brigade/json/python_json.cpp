#include "brigade/json/python_json.h"

#include <string>

namespace brigade {
namespace {

// With quotes around what stands outside of text and is no JSON.
std::string with_quotes(std::string_view text) {
  std::string result;
  bool is_in_text = false;
  for (size_t at = 0; at < text.size();) {
    size_t length = 1;
    bool needs_quotes = false;
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
        needs_quotes = true;
      }
    }
    const std::string_view part = text.substr(at, length);
    result +=
        needs_quotes ? "\"" + std::string(part) + "\"" : std::string(part);
    at += length;
  }
  return result;
}

}  // namespace

nlohmann::json parse_python_json(
    std::string_view text,
    const JsonSource& source) {
  const std::string quoted = with_quotes(text);
  const JsonDocument document(quoted, source, {.last_key_counts = true});
  return document.root().value();
}

}  // namespace brigade
