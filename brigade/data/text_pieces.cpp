// Blocks of text into pieces of documents: encoding, separators, JSON lines.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "brigade/base/error.h"
#include "brigade/data/text_reader.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Finds one string among the members of an object, whatever else is there.
// Keeps nothing of the rest: a line may be long.
class StringFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StringFinder(const std::string& key) : key_(key) {}

  enum class Outcome { kNothing, kString, kOtherType };
  Outcome outcome = Outcome::kNothing;
  std::string found;
  bool is_object = false;
  size_t error_offset = 0;

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override {
    return other();
  }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& value) override {
    if (wanted()) {
      found = std::move(value);
      outcome = Outcome::kString;
    }
    return true;
  }
  bool start_object(size_t) override {
    other();
    is_object = is_object || depth_ == 0;
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    is_wanted_ = depth_ == 1 && name == key_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override {
    other();
    ++depth_;
    return true;
  }
  bool end_array() override { return leave(); }
  bool parse_error(
      size_t position,
      const std::string&,
      const nlohmann::detail::exception&) override {
    error_offset = position == 0 ? 0 : position - 1;
    return false;
  }

 private:
  bool wanted() const { return depth_ == 1 && is_wanted_; }
  bool other() {
    if (wanted())
      outcome = Outcome::kOtherType;
    return true;
  }
  bool leave() {
    --depth_;
    is_wanted_ = false;
    return true;
  }

  const std::string& key_;
  int depth_ = 0;
  bool is_wanted_ = false;
};

// Errors about a place in a block. Positions count in the block's text as
// UTF-8, which is longer than the file's bytes if those were Latin-1.
class Place {
 public:
  Place(const TextBlock& block, const TextFile& file)
      : block_(block), file_(file), text_(block.text) {}

  void set_converted(std::string_view text) {
    text_ = text;
    is_converted_ = true;
  }

  [[noreturn]] void fail(size_t position, std::string_view what) const {
    const std::string_view before = text_.substr(0, position);
    const auto extra_bytes =
        is_converted_
            ? std::count_if(before.begin(), before.end(), is_utf8_continuation)
            : 0;
    const auto lines = std::count(before.begin(), before.end(), '\n');
    throw DataError(fmt::format(
        "[{}] at byte {}, line {}: {}",
        file_.path.string(),
        block_.offset + before.size() - static_cast<uint64_t>(extra_bytes),
        block_.line + static_cast<uint64_t>(lines),
        what));
  }

 private:
  const TextBlock& block_;
  const TextFile& file_;
  std::string_view text_;
  bool is_converted_ = false;
};

std::string latin1_to_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 16);
  for (const char c : text)
    append_utf8(result, static_cast<unsigned char>(c));
  return result;
}

void check_utf8(std::string_view text, const Place& place) {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size())
    return;
  std::string_view encoding = "";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    encoding = " (it begins as UTF-16 does)";
  place.fail(
      valid,
      fmt::format(
          "byte 0x{:02x} is not UTF-8{}; convert the file, for example with "
          "iconv, or say --encoding latin1 if that is what it is",
          static_cast<unsigned char>(text[valid]),
          encoding));
}

// `position` is the line's in the block.
void handle_json_line(
    std::string_view line,
    size_t position,
    const Place& place,
    const TextOptions& options,
    const std::function<void(const TextPiece&)>& handle) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos)
    return;
  StringFinder finder(options.json_key);
  const bool parsed =
      nlohmann::json::sax_parse(line.begin(), line.end(), &finder);
  if (!parsed) {
    place.fail(
        position + std::min(finder.error_offset, line.size()),
        "the line is not JSON");
  }
  if (!finder.is_object)
    place.fail(position, "the line is not a JSON object");
  if (finder.outcome != StringFinder::Outcome::kString) {
    place.fail(
        position,
        fmt::format(
            "{} '{}'; --json-key names the member that holds the text",
            finder.outcome == StringFinder::Outcome::kNothing
                ? "the object has no member"
                : "there is no string in",
            options.json_key));
  }
  handle({.text = finder.found});
}

}  // namespace

void for_each_piece(
    const TextBlock& block,
    const TextFile& file,
    const TextOptions& options,
    const std::function<void(const TextPiece&)>& handle) {
  Place place(block, file);
  std::string converted;
  std::string_view text = block.text;
  if (options.encoding == TextEncoding::kLatin1) {
    converted = latin1_to_utf8(text);
    text = converted;
    place.set_converted(text);
  } else {
    check_utf8(text, place);
  }
  const char* const begin = text.data();
  if (block.offset == 0 && options.encoding == TextEncoding::kUtf8 &&
      text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());

  const bool is_json = file.format == TextFormat::kJsonLines;
  const std::string_view separator =
      is_json ? std::string_view("\n") : options.document_separator;
  bool continues = block.continues;
  while (true) {
    const size_t end =
        separator.empty() ? std::string_view::npos : text.find(separator);
    const bool is_last = end == std::string_view::npos;
    const std::string_view piece = text.substr(0, end);
    if (is_json) {
      handle_json_line(
          piece,
          static_cast<size_t>(piece.data() - begin),
          place,
          options,
          handle);
    } else {
      handle(
          {.text = piece,
           .continues = continues,
           .ends_document = !is_last || block.ends_document});
    }
    if (is_last)
      return;
    continues = false;
    text.remove_prefix(end + separator.size());
  }
}

}  // namespace brigade
