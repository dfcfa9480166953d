#include "brigade/json/scanner.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "brigade/base/error.h"

namespace brigade {

void JsonScanner::fail(const std::string& problem) const {
  throw DataError(fmt::format(
      "{}: {} (at byte {})",
      source_.introduction,
      problem,
      source_.base_offset_bytes + position_));
}

void JsonScanner::skip_white_space() {
  while (position_ < text_.size() &&
         std::string_view(" \t\r\n").find(text_[position_]) !=
             std::string_view::npos)
    ++position_;
}

bool JsonScanner::accept(char wanted) {
  skip_white_space();
  if (position_ == text_.size() || text_[position_] != wanted)
    return false;
  ++position_;
  return true;
}

void JsonScanner::expect(char wanted) {
  if (accept(wanted))
    return;
  if (position_ == text_.size())
    fail(fmt::format("{} ends where '{}' should come", source_.what, wanted));
  fail(fmt::format(
      "{} holds {} where '{}' should come",
      source_.what,
      shown_word(text_, position_),
      wanted));
}

bool JsonScanner::another_item(char close) {
  if (accept(','))
    return true;
  expect(close);
  return false;
}

void JsonScanner::expect_end() {
  skip_white_space();
  if (position_ != text_.size()) {
    fail(fmt::format(
        "{} holds {} after its end",
        source_.what,
        shown_word(text_, position_)));
  }
}

uint64_t JsonScanner::unsigned_integer() {
  skip_white_space();
  const std::string_view rest = text_.substr(position_);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error == std::errc::invalid_argument)
    fail("an unsigned integer is missing");
  if (error == std::errc::result_out_of_range)
    fail("an integer is above 2^64 - 1");
  const auto length = static_cast<size_t>(end - rest.data());
  const bool has_leading_zero = rest[0] == '0' && length > 1;
  const std::string_view next = rest.substr(length, 1);
  if (has_leading_zero || next == "." || next == "e" || next == "E")
    fail("a number is not a plain unsigned integer");
  position_ += length;
  return value;
}

bool JsonScanner::accept_null() {
  constexpr std::string_view kNull = "null";
  skip_white_space();
  if (!text_.substr(position_).starts_with(kNull))
    return false;
  position_ += kNull.size();
  return true;
}

JsonStringLiteral JsonScanner::string() {
  expect('"');
  JsonStringProblem problem;
  const auto literal = read_string_literal(text_, position_ - 1, problem);
  if (!literal) {
    position_ = problem.offset;
    fail(problem.problem);
  }
  position_ += literal->raw.size() + 1;
  return *literal;
}

}  // namespace brigade
