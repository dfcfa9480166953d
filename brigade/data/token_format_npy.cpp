// NumPy's .npy: a header that is a Python dict in ASCII, then the array. The
// format is NEP 1; versions 1, 2 and 3 differ in the header's length field.
#include <fmt/ranges.h>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "brigade/base/checked_math.h"
#include "brigade/data/byte_reader.h"
#include "brigade/data/token_format.h"

namespace brigade {
namespace {

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr uint64_t kMaxHeaderBytes = 1 << 20;

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// The dict {'descr': '<u2', 'fortran_order': False, 'shape': (10,), }: exactly
// these three keys, in any order, as NumPy requires.
class DictParser {
 public:
  DictParser(const ByteReader& reader, uint64_t at, std::string_view text)
      : reader_(reader), at_(at), text_(text) {}

  NpyHeader parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<uint64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const uint64_t key_at = offset();
      const std::string key = parse_string();
      expect(':');
      if (key == "descr" && !descr) {
        if (peek() == '[')
          fail("a structured dtype, not tokens");
        descr = parse_string();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = parse_bool();
      } else if (key == "shape" && !shape) {
        shape = parse_shape();
      } else {
        reader_.fail(
            key_at,
            "key '{}' is unknown or comes twice; expected descr, "
            "fortran_order and shape",
            key);
      }
      if (!accept(',') && peek() != '}')
        fail("expected ',' or '}'");
    }
    if (!descr || !fortran_order || !shape)
      fail("descr, fortran_order or shape is missing");
    return {*std::move(descr), *fortran_order, *std::move(shape)};
  }

 private:
  uint64_t offset() const { return at_ + position_; }
  [[noreturn]] void fail(std::string_view what) const {
    reader_.fail(offset(), "{}", what);
  }
  void skip_space() {
    while (position_ < text_.size() &&
           (text_[position_] == ' ' || text_[position_] == '\n'))
      ++position_;
  }
  char peek() {
    skip_space();
    if (position_ == text_.size())
      fail("the header ends too early");
    return text_[position_];
  }
  bool accept(char c) {
    if (peek() != c)
      return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      fail(fmt::format("expected '{}'", c));
  }

  std::string parse_string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"')
      fail("expected a string");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos)
      fail("a string without its end");
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    position_ = end + 1;
    return value;
  }

  bool parse_bool() {
    skip_space();
    const std::string_view rest = text_.substr(position_);
    for (const auto& [word, value] :
         {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (rest.starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    fail("expected True or False");
  }

  uint64_t parse_number() {
    const char first = peek();
    if (first < '0' || first > '9')
      fail("expected a number");
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(
        text_.data() + position_, text_.data() + text_.size(), value);
    if (error != std::errc())
      fail("a number that overflows 64 bits");
    position_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  std::vector<uint64_t> parse_shape() {
    std::vector<uint64_t> shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == 2)
        fail("more than 2 dimensions; tokens have 1, or 2 (rows)");
      shape.push_back(parse_number());
      if (!accept(',') && peek() != ')')
        fail("expected ',' or ')'");
    }
    return shape;
  }

  const ByteReader& reader_;
  uint64_t at_;
  std::string_view text_;
  size_t position_ = 0;
};

TokenType
token_type_of(const ByteReader& reader, uint64_t at, const std::string& descr) {
  constexpr std::pair<std::string_view, TokenType> kTypes[] = {
      {"|u1", TokenType::kU8},
      {"|i1", TokenType::kI8},
      {"<u2", TokenType::kU16},
      {"<i2", TokenType::kI16},
      {"<u4", TokenType::kU32},
      {"<i4", TokenType::kI32},
      {"<i8", TokenType::kI64},
      {"<u8", TokenType::kU64}};
  for (const auto& [name, type] : kTypes) {
    if (descr == name)
      return type;
  }
  if (descr.find('O') != std::string::npos)
    reader.fail(at, "dtype '{}' holds pickled objects: refused", descr);
  reader.fail(
      at,
      "dtype '{}' is not one of little-endian integers (|u1 |i1 <u2 <i2 <u4 "
      "<i4 <i8 <u8)",
      descr);
}

}  // namespace

TokenFileLayout parse_npy(const NamedBytes& tokens) {
  ByteReader reader(tokens.name, tokens.bytes);
  const auto magic = reader.take(kNpyMagic.size(), "NumPy's magic");
  if (std::memcmp(magic.data(), kNpyMagic.data(), kNpyMagic.size()) != 0)
    reader.fail(0, "not a .npy file: it must begin with \\x93NUMPY");
  const auto major = reader.number<uint8_t>("the version");
  reader.number<uint8_t>("the version");
  if (major < 1 || major > 3)
    reader.fail(6, "version {}; 1, 2 and 3 are known", major);
  const uint64_t header_bytes =
      major == 1 ? reader.number<uint16_t>("the header's length")
                 : reader.number<uint32_t>("the header's length");
  if (header_bytes > kMaxHeaderBytes)
    reader.fail(8, "a header of {} bytes; at most 1 MiB", header_bytes);
  const uint64_t header_at = reader.offset();
  const auto header_span = reader.take(header_bytes, "the header");
  const NpyHeader header =
      DictParser(
          reader,
          header_at,
          {reinterpret_cast<const char*>(header_span.data()),
           header_span.size()})
          .parse();

  const TokenType type = token_type_of(reader, header_at, header.descr);
  if (header.shape.empty())
    reader.fail(header_at, "shape () is a scalar; tokens have 1 or 2 dims");
  if (header.fortran_order && header.shape.size() == 2)
    reader.fail(header_at, "fortran_order: rows do not lie back to back");
  const auto count = checked_product(header.shape);
  const auto size_bytes =
      count ? checked_multiply(*count, token_bytes(type)) : std::nullopt;
  if (size_bytes != reader.remaining()) {
    reader.fail(
        header_at,
        "shape ({}) of {} takes {} bytes, but {} follow the header",
        fmt::join(header.shape, ", "),
        to_string(type),
        size_bytes ? fmt::to_string(*size_bytes) : "more than 2^64",
        reader.remaining());
  }
  return {
      type,
      reader.offset(),
      *count,
      header.shape.size() == 2
          ? DocumentIndex::rows(header.shape[0], header.shape[1])
          : DocumentIndex(*count)};
}

}  // namespace brigade
