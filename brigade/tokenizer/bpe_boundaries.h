// Where a text may be cut before merging without changing the result.
//
// A merge of tokens A and B reaches across the boundary between two characters
// x and y only if A ends with x and B begins with y. So a boundary x|y is safe,
// whatever stands around it, when no merge has such an A and B; the parts on
// both sides then merge independently, and each can be looked up in a cache. A
// Llama 2 vocabulary's "▁" begins words and never follows a letter, so a whole
// text without a pre-tokenizer still falls apart into its words.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace brigade {

class BpeBoundaries {
 public:
  BpeBoundaries();

  // Records a merge of two tokens, by their texts (not empty).
  void add_merge(std::string_view left, std::string_view right);

  // Two characters by their classes; see left_class() and right_class().
  bool is_safe(uint16_t left, uint16_t right) const {
    return !unsafe_[static_cast<size_t>(left) * kMaxClasses + right];
  }
  // The class of `c` in front of a boundary and behind one. Class 0 is that of
  // all characters that no merge has there: safe with everything.
  uint16_t left_class(char32_t c) const { return find(left_, c); }
  uint16_t right_class(char32_t c) const { return find(right_, c); }

 private:
  // Characters past this many share the last class and are cut a little less
  // often than they could be.
  static constexpr uint16_t kMaxClasses = 2048;
  using Classes = std::unordered_map<char32_t, uint16_t>;
  Classes left_;
  Classes right_;
  std::vector<bool> unsafe_;  // [left class][right class]

  static uint16_t find(const Classes& classes, char32_t c);
  static uint16_t find_or_add(Classes& classes, char32_t c);
};

}  // namespace brigade
