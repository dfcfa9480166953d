// What Split and Replace look for: {"String": ...} or {"Regex": ...}.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/regex.h"

namespace brigade {

// What a text of so many bytes may grow to on its way: far beyond what any real
// tokenizer does.
constexpr size_t max_grown_bytes(size_t size_bytes) {
  return 64 * size_bytes + (size_t{1} << 20);
}

class Pattern {
 public:
  explicit Pattern(const JsonNode& node)
      : file_(node.file()), path_(node.pointer()) {
    node.require_object();
    if (const auto text = node.find("String")) {
      literal_ = text->string();
      if (literal_.empty())
        text->fail("the pattern is empty");
    } else if (const auto regex = node.find("Regex")) {
      regex_.emplace(regex->string(), *regex);
    } else {
      node.fail("expected {\"String\": ...} or {\"Regex\": ...}");
    }
  }

  // found(begin, end) for every match from left to right, without overlap.
  template <typename Found>
  void for_each(std::string_view text, RegexScratch& scratch, Found&& found)
      const {
    if (regex_) {
      for_each_match(*regex_, text, scratch, found);
      return;
    }
    size_t at = text.find(literal_);
    while (at != std::string_view::npos) {
      found(at, at + literal_.size());
      at = text.find(literal_, at + literal_.size());
    }
  }

  // `text` with every match replaced by `content`. Throws DataError when that
  // is longer than `max_bytes`: a few replacements in a row can make a text of
  // any size. `leading_bytes` becomes the length of a match at the beginning.
  std::string replace(
      std::string_view text,
      std::string_view content,
      size_t max_bytes,
      RegexScratch& scratch,
      size_t* leading_bytes = nullptr) const {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    size_t end_of_last = 0;
    for_each(text, scratch, [&](size_t begin, size_t end) {
      if (begin == 0 && leading_bytes)
        *leading_bytes = end;
      out.append(text, end_of_last, begin - end_of_last);
      out.append(content);
      if (out.size() > max_bytes)
        throw DataError(fmt::format(
            "[tokenizer] {}: at {}: replacing makes the text longer than {} "
            "bytes",
            file_,
            path_,
            max_bytes));
      end_of_last = end;
    });
    out.append(text, end_of_last);
    return out;
  }

 private:
  std::string file_;
  std::string path_;
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace brigade
