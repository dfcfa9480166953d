#include "brigade/chat/text.h"

#include <algorithm>
#include <set>
#include <utility>

#include "brigade/tokenizer/unicode.h"

namespace brigade::jinja {
namespace {

// The code point at `at`, a surrogate's too ('\ud83d' in a template is one
// character, as in Python); for a lone byte its value. Sets its length.
char32_t read_code_point(std::string_view text, size_t at, size_t& length) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[at + i]);
  };
  const unsigned char first = byte(0);
  length = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length == 1 || at + length > text.size()) {
    length = 1;
    return first;
  }
  char32_t value = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i)
    value = value << 6 | (byte(i) & 0x3FU);
  return value;
}

}  // namespace

Text Text::part(size_t begin, size_t end) const {
  Text result(bytes_.substr(begin, end - begin));
  for (const Mark& mark : marks_) {
    const size_t first = std::max(mark.begin, begin);
    const size_t last = std::min(mark.end, end);
    const bool touches = first == last && mark.kind == Mark::Kind::kContent;
    const bool is_any_empty = mark.begin == mark.end || begin == end;
    if (first < last || (touches && is_any_empty))
      result.marks_.push_back(
          {first - begin, last - begin, mark.message, mark.kind});
  }
  return result;
}

void Text::add(const Mark& mark) {
  const bool joins = mark.kind == Mark::Kind::kContent;
  for (size_t i = marks_.size(); joins && i-- > 0;) {
    if (marks_[i].kind == mark.kind && marks_[i].message == mark.message &&
        marks_[i].end == mark.begin) {
      marks_[i].end = mark.end;
      return;
    }
    if (marks_[i].end < mark.begin)
      break;
  }
  marks_.push_back(mark);
}

void Text::append(const Text& other) {
  const size_t offset = bytes_.size();
  bytes_ += other.bytes_;
  for (const Mark& mark : other.marks_)
    add({mark.begin + offset, mark.end + offset, mark.message, mark.kind});
}

void Text::mark(int32_t message, Mark::Kind kind) {
  if (!bytes_.empty() || kind == Mark::Kind::kContent)
    marks_.push_back({0, bytes_.size(), message, kind});
}

Text Text::with_bytes(std::string bytes) const {
  Text result(std::move(bytes));
  if (result.size() == size()) {
    result.marks_ = marks_;
    return result;
  }
  std::set<std::pair<int32_t, Mark::Kind>> marked;
  for (const Mark& mark : marks_) {
    if (mark.begin == mark.end && !empty())
      continue;
    if (marked.emplace(mark.message, mark.kind).second)
      result.mark(mark.message, mark.kind);
  }
  return result;
}

char32_t code_point_at(std::string_view text, size_t at) {
  size_t length = 0;
  return read_code_point(text, at, length);
}

std::vector<size_t> code_point_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t at = 0; at < text.size();) {
    offsets.push_back(at);
    size_t length = 0;
    read_code_point(text, at, length);
    at += length;
  }
  offsets.push_back(text.size());
  return offsets;
}

Text strip(const Text& text, Sides sides, std::string_view characters) {
  std::set<char32_t> taken;
  for (size_t at = 0; at < characters.size();) {
    size_t length = 0;
    taken.insert(read_code_point(characters, at, length));
    at += length;
  }
  const std::vector<size_t> offsets = code_point_offsets(text.bytes());
  const auto goes = [&](size_t i) {
    const char32_t c = code_point_at(text.bytes(), offsets[i]);
    return taken.empty() ? is_python_space(c) : taken.count(c) > 0;
  };
  size_t begin = 0;
  size_t end = offsets.size() - 1;
  if (sides != Sides::kRight) {
    while (begin < end && goes(begin))
      ++begin;
  }
  if (sides != Sides::kLeft) {
    while (end > begin && goes(end - 1))
      --end;
  }
  return text.part(offsets[begin], offsets[end]);
}

}  // namespace brigade::jinja
