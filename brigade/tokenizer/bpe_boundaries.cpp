#include "brigade/tokenizer/bpe_boundaries.h"

#include <algorithm>

#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

char32_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (is_utf8_continuation(text[at]))
    --at;
  return utf8_code_point(text, at);
}

}  // namespace

BpeBoundaries::BpeBoundaries()
    : unsafe_(size_t{kMaxClasses} * kMaxClasses, false) {}

uint16_t BpeBoundaries::find(const Classes& classes, char32_t c) {
  const auto found = classes.find(c);
  return found == classes.end() ? uint16_t{0} : found->second;
}

uint16_t BpeBoundaries::find_or_add(Classes& classes, char32_t c) {
  const auto next = static_cast<uint16_t>(
      std::min<size_t>(classes.size() + 1, kMaxClasses - 1));
  return classes.emplace(c, next).first->second;
}

void BpeBoundaries::add_merge(std::string_view left, std::string_view right) {
  const uint16_t row = find_or_add(left_, last_character(left));
  const uint16_t column = find_or_add(right_, utf8_code_point(right, 0));
  unsafe_[size_t{row} * kMaxClasses + column] = true;
}

}  // namespace brigade
