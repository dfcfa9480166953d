#include "brigade/tokenizer/bpe_boundaries.h"

#include <algorithm>

#include "brigade/base/utf8.h"

namespace brigade {

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
  const size_t last = utf8_character_before(left, left.size());
  const uint16_t row = find_or_add(left_, utf8_code_point(left, last));
  const uint16_t column = find_or_add(right_, utf8_code_point(right, 0));
  unsafe_[size_t{row} * kMaxClasses + column] = true;
}

}  // namespace brigade
