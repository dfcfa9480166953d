#include "brigade/json/visit.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "brigade/base/byte_order_mark.h"
#include "brigade/json/string_literal.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr std::string_view kBetweenValues = " \t\r\n,:";
constexpr std::string_view kNumber = "+-.0123456789eE";
// nlohmann::detail::out_of_range: a number beyond the range of double.
constexpr int kNumberOutOfRange = 406;

// A forward iterator that records how far the parser has read.
class FollowedIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  FollowedIterator(const char* at, const char** reached)
      : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  FollowedIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  FollowedIterator operator++(int) {
    const FollowedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const FollowedIterator& other) const {
    return at_ == other.at_;
  }
  bool operator!=(const FollowedIterator& other) const {
    return at_ != other.at_;
  }

 private:
  const char* at_;
  const char** reached_;
};

struct Level {
  bool is_array = false;
  size_t begin = 0;  // offset of its bracket
  size_t index = 0;  // of an array's element
  std::string key;   // of an object's member
};

// Receives nlohmann's events and passes them on with their places.
class Adapter final : public nlohmann::json_sax<json>, public JsonPosition {
 public:
  Adapter(std::string_view text, const JsonLimits& limits, JsonVisitor& visitor)
      : text_(text),
        limits_(limits),
        visitor_(visitor),
        reached_(text.data()),
        event_end_(
            text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0) {}

  std::optional<JsonFault> run() {
    if (text_.size() > limits_.max_bytes) {
      fail(
          fmt::format(
              "the text has {} bytes, above the limit of {}",
              text_.size(),
              limits_.max_bytes),
          0);
      return std::move(fault_);
    }
    const char* const begin = text_.data();
    json::sax_parse(
        FollowedIterator(begin, &reached_),
        FollowedIterator(begin + text_.size(), &reached_),
        this);
    return std::move(fault_);
  }

  size_t offset() const override { return offset_; }
  size_t depth() const override { return levels_.size(); }
  std::string pointer() const override {
    std::string pointer;
    for (const Level& level : levels_) {
      const bool has_child =
          level.is_array || &level != &levels_.back() || last_ != Last::kOpened;
      if (has_child)
        pointer = child_pointer(
            pointer, level.is_array ? std::to_string(level.index) : level.key);
    }
    return pointer;
  }

  bool null() override { return scalar(json()); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(int64_t value) override { return number(value); }
  bool number_unsigned(uint64_t value) override { return number(value); }
  bool number_float(double value, const std::string&) override {
    return number(value);
  }
  bool string(std::string& value) override { return scalar(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // not in text

  bool start_object(size_t) override {
    begin_event();
    return visitor_.begin_object(*this) && enter(false);
  }
  bool start_array(size_t) override {
    begin_event();
    return visitor_.begin_array(*this) && enter(true);
  }
  bool key(std::string& name) override {
    begin_event();
    levels_.back().key = name;
    last_ = Last::kKey;
    return visitor_.key(name, *this);
  }
  bool end_object() override {
    leave();
    return visitor_.end_object(*this) && after_value();
  }
  bool end_array() override {
    leave();
    return visitor_.end_array(*this) && after_value();
  }

  bool parse_error(
      size_t bytes_read,
      const std::string& token,
      const json::exception& error) override {
    const size_t last_byte =
        std::min(text_.size(), bytes_read == 0 ? 0 : bytes_read - 1);
    if (error.id == kNumberOutOfRange) {
      begin_event();
      return fail(
          fmt::format("the number {} is beyond the range of a double", token),
          offset_);
    }
    explain(last_byte, token);
    return false;
  }

 private:
  enum class Last { kNothing, kOpened, kKey, kValue };

  bool fail(std::string problem, size_t offset) {
    fault_ = {std::move(problem), offset, pointer()};
    return false;
  }

  void begin_event() {
    offset_ = std::min(
        text_.find_first_not_of(kBetweenValues, event_end_), text_.size());
    event_end_ = static_cast<size_t>(reached_ - text_.data());
  }

  bool scalar(json&& value) {
    begin_event();
    return visitor_.scalar(std::move(value), *this) && after_value();
  }

  bool number(json&& value) {
    begin_event();
    // The parser has read one byte more, unless the text ends.
    event_end_ =
        std::min(text_.find_first_not_of(kNumber, offset_), text_.size());
    return visitor_.scalar(std::move(value), *this) && after_value();
  }

  bool enter(bool is_array) {
    if (levels_.size() == limits_.max_depth)
      return fail(
          fmt::format("nested deeper than {} levels", limits_.max_depth),
          offset_);
    levels_.push_back({.is_array = is_array, .begin = offset_});
    last_ = Last::kOpened;
    return true;
  }

  void leave() {
    event_end_ = static_cast<size_t>(reached_ - text_.data());
    offset_ = levels_.back().begin;
    levels_.pop_back();
  }

  bool after_value() {
    last_ = Last::kValue;
    if (!levels_.empty() && levels_.back().is_array)
      ++levels_.back().index;
    return true;
  }

  // What could have come where something else did.
  std::string expectation(bool after_separator) const {
    if (levels_.empty())
      return last_ == Last::kNothing ? "a JSON value"
                                     : "nothing after the JSON value";
    const bool is_array = levels_.back().is_array;
    if (last_ == Last::kKey)
      return fmt::format(
          "{} the key \"{}\"",
          after_separator ? "a value for" : "':' after",
          shown_text(levels_.back().key));
    const char* item = is_array ? "a value" : "a key in double quotes";
    const char* close = is_array ? "]" : "}";
    if (last_ == Last::kOpened)
      return fmt::format("{} or '{}'", item, close);
    return after_separator ? fmt::format("{} after the comma", item)
                           : fmt::format("',' or '{}'", close);
  }

  void explain(size_t last_byte, const std::string& token) {
    const size_t quote = token.starts_with('"') ? text_.find('"', event_end_)
                                                : std::string_view::npos;
    if (quote != std::string_view::npos) {
      if (const auto problem = check_string_literal(text_, quote)) {
        fail(problem->problem, problem->offset);
        return;
      }
    }
    const size_t word = text_.find_first_not_of(
        levels_.empty() ? kWhiteSpace : kBetweenValues, event_end_);
    const size_t begin = std::min({quote, word, last_byte});
    const std::string_view between =
        text_.substr(event_end_, begin - std::min(event_end_, begin));
    const bool after_separator =
        between.find(last_ == Last::kKey ? ':' : ',') != std::string_view::npos;
    if (begin >= text_.size()) {
      fail(
          levels_.empty() && last_ == Last::kNothing
              ? std::string("the text is empty; expected a JSON value")
              : fmt::format(
                    "the text ends where {} should come; {}",
                    expectation(after_separator),
                    innermost()),
          text_.size());
      return;
    }
    fail(
        fmt::format(
            "expected {}, found {}",
            expectation(after_separator),
            shown_word(text_, begin)),
        begin);
  }

  std::string innermost() const {
    if (levels_.empty())
      return "nothing is open";
    const JsonPlace place = place_of(text_, levels_.back().begin);
    return fmt::format(
        "the {} that begins at line {}, column {} is not closed",
        levels_.back().is_array ? "array" : "object",
        place.line,
        place.column);
  }

  std::string_view text_;
  const JsonLimits& limits_;
  JsonVisitor& visitor_;
  const char* reached_;
  size_t offset_ = 0;
  size_t event_end_;
  Last last_ = Last::kNothing;
  std::vector<Level> levels_;
  std::optional<JsonFault> fault_;
};

// Follows a pointer down and stops at the value that it leads to.
class PlaceFinder final : public JsonVisitor {
 public:
  explicit PlaceFinder(std::string_view pointer) : pointer_(pointer) {}
  size_t found = 0;

  bool scalar(json&&, const JsonPosition& at) override { return look(at); }
  bool begin_object(const JsonPosition& at) override { return look(at); }
  bool begin_array(const JsonPosition& at) override { return look(at); }

 private:
  bool look(const JsonPosition& at) {
    const std::string here = at.pointer();
    const bool is_on_the_way =
        pointer_.starts_with(here) &&
        (pointer_.size() == here.size() || pointer_[here.size()] == '/');
    if (is_on_the_way)
      found = at.offset();
    return here != pointer_;
  }

  std::string_view pointer_;
};

}  // namespace

JsonPlace place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t newline = before.rfind('\n');
  return {
      .line = 1 + static_cast<size_t>(
                      std::count(before.begin(), before.end(), '\n')),
      .column = newline == std::string_view::npos ? before.size() + 1
                                                  : before.size() - newline};
}

std::string child_pointer(std::string_view pointer, std::string_view child) {
  std::string path = std::string(pointer) + "/";
  for (const char c : child) {
    if (c == '~')
      path += "~0";
    else if (c == '/')
      path += "~1";
    else
      path += c;
  }
  return path;
}

std::optional<JsonFault> visit_json(
    std::string_view text,
    const JsonLimits& limits,
    JsonVisitor& visitor) {
  return Adapter(text, limits, visitor).run();
}

size_t find_offset(std::string_view text, std::string_view pointer) {
  PlaceFinder finder(pointer);
  const JsonLimits no_limits{.max_bytes = SIZE_MAX, .max_depth = SIZE_MAX};
  visit_json(text, no_limits, finder);
  return finder.found;
}

}  // namespace brigade
