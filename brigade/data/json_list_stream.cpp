#include "brigade/data/json_list_stream.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "brigade/base/byte_order_mark.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

JsonListStream::JsonListStream(
    std::unique_ptr<ByteStream> stream,
    std::string name)
    : stream_(std::move(stream)), name_(std::move(name)) {}

void JsonListStream::fail(const char* what) const {
  throw DataError(fmt::format("[{}] at byte {}: {}", name_, offset_, what));
}

size_t JsonListStream::read(char* out, size_t size) {
  size_t written = 0;
  while (written < size) {
    const size_t count = stream_->read(out + written, size - written);
    const std::string_view given(out + written, count);
    if (count == 0) {
      const bool is_open = place_ == Place::kElement ||
                           place_ == Place::kString || place_ == Place::kEscape;
      if (is_open)
        fail("the list is cut off: there is no ] behind its last element");
      return written;
    }
    if (place_ == Place::kPlain) {
      written += count;
      continue;
    }
    // A list only becomes shorter, so that it is rewritten in its own place.
    for (const char c : given) {
      const char kept = place_ == Place::kPlain ? c : next(c);
      ++offset_;
      if (kept != '\0' || place_ == Place::kPlain)
        out[written++] = kept;
    }
  }
  return written;
}

char JsonListStream::next(char c) {
  switch (place_) {
    case Place::kPlain:
      return c;
    case Place::kFront:
      if (c == '[') {
        place_ = Place::kElement;
        return '\0';
      }
      if (!is_json_space(c) && kByteOrderMark.find(c) == std::string_view::npos)
        place_ = Place::kPlain;
      if (c == '\n')
        ++lines_before_;
      return c;
    case Place::kEscape:
      place_ = Place::kString;
      return c;
    case Place::kString:
      if (c == '\\')
        place_ = Place::kEscape;
      else if (c == '"')
        place_ = Place::kElement;
      return c;
    case Place::kBehind:
      if (!is_json_space(c))
        fail(
            "something stands behind the list; a file whose first character "
            "is [ is read as one list, also a .jsonl");
      return '\0';
    case Place::kElement:
      break;
  }
  return next_of_element(c);
}

char JsonListStream::next_of_element(char c) {
  if (is_json_space(c))
    return ' ';
  if (depth_ == 0 && c == ']') {
    if (has_comma_ || has_content_)
      end_element();
    place_ = Place::kBehind;
    return '\n';
  }
  if (depth_ == 0 && c == ',') {
    end_element();
    has_comma_ = true;
    return '\n';
  }
  has_content_ = true;
  if (c == '"')
    place_ = Place::kString;
  else if (c == '{' || c == '[')
    ++depth_;
  else if (c == '}' || c == ']')
    --depth_;
  return c;
}

void JsonListStream::end_element() {
  if (!std::exchange(has_content_, false))
    fail("a comma in the list without an element beside it");
}

}  // namespace brigade
