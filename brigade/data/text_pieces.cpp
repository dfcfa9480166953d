// Blocks of text into pieces of documents: encoding, separators, JSON lines.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "brigade/base/byte_order_mark.h"
#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/data/text_files.h"
#include "brigade/data/text_reader.h"
#include "brigade/files/read_once.h"
#include "brigade/json/fault_text.h"
#include "brigade/json/string_member.h"

namespace brigade {
namespace {

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

  const TextFile& file() const { return file_; }

  [[noreturn]] void fail(size_t position, std::string_view what) const {
    const std::string_view before = text_.substr(0, position);
    const auto extra_bytes =
        is_converted_
            ? std::count_if(before.begin(), before.end(), is_utf8_continuation)
            : 0;
    const uint64_t line =
        block_.line +
        static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n'));
    if (block_.lines_before_list)
      throw DataError(fmt::format(
          "[{}] at element {} of the list: {}",
          input_name(file_.path),
          line - *block_.lines_before_list,
          what));
    throw DataError(fmt::format(
        "[{}] at byte {}, line {}: {}",
        input_name(file_.path),
        block_.offset + before.size() - static_cast<uint64_t>(extra_bytes),
        line,
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

// `position` is the text's in the block.
void check_utf8(
    std::string_view text,
    size_t position,
    const Place& place,
    const TextOptions& options) {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size())
    return;
  std::string_view encoding = "";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    encoding = " (it begins as UTF-16 does)";
  place.fail(
      position + valid,
      fmt::format(
          "byte 0x{:02x} is not UTF-8{}; convert the file, for example with "
          "iconv{}",
          static_cast<unsigned char>(text[valid]),
          encoding,
          options.are_of_prepare
              ? ", or say --encoding latin1 if that is what it is"
              : ""));
}

// What table_stream.h says of a row without a text.
[[noreturn]] void fail_at_row(std::string_view line, const TextFile& file) {
  StringMember reason;
  const bool is_told = !find_string_member(line, "", reason) &&
                       reason.outcome == StringMember::Outcome::kString;
  throw DataError(fmt::format(
      "[{}] {}",
      file.path.string(),
      is_told ? reason.text : "a row without a text"));
}

// The document of a line of JSON; absent where the line is blank. `position` is
// the line's in the block.
std::optional<std::string> document_of_line(
    std::string_view line,
    size_t position,
    const Place& place,
    const TextOptions& options) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos)
    return std::nullopt;
  StringMember member;
  if (const auto fault = find_string_member(line, options.json_key, member)) {
    place.fail(position + fault->offset, describe(*fault));
  }
  switch (member.outcome) {
    case StringMember::Outcome::kString:
      return std::move(member.text);
    case StringMember::Outcome::kNoObject:
      place.fail(position, "the line is not a JSON object");
    case StringMember::Outcome::kAbsent:
    case StringMember::Outcome::kOtherType:
      if (place.file().is_table)
        fail_at_row(line, place.file());
      place.fail(
          position,
          fmt::format(
              "{} '{}'; --json-key names the member that holds the text",
              member.outcome == StringMember::Outcome::kAbsent
                  ? "the object has no member"
                  : "there is no string in",
              options.json_key));
  }
  return std::nullopt;
}

}  // namespace

void for_each_piece(
    const TextBlock& block,
    const TextFile& file,
    const TextOptions& options,
    const std::function<void(const TextPiece&)>& handle,
    const std::function<void(const DataError&)>& on_bad_line) {
  Place place(block, file);
  const bool is_json = block.format == TextFormat::kJsonLines;
  std::string converted;
  std::string_view text = block.text;
  if (options.encoding == TextEncoding::kLatin1) {
    converted = latin1_to_utf8(text);
    text = converted;
    place.set_converted(text);
  } else if (!is_json) {
    // JSON line by line, so that the first with a fault of any kind is named.
    check_utf8(text, 0, place, options);
  }
  const char* const begin = text.data();
  if (block.offset == 0 && options.encoding == TextEncoding::kUtf8 &&
      text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());

  const std::string_view separator =
      is_json ? std::string_view("\n") : options.document_separator;
  bool continues = block.continues;
  while (true) {
    const size_t end =
        separator.empty() ? std::string_view::npos : text.find(separator);
    const bool is_last = end == std::string_view::npos;
    const std::string_view piece = text.substr(0, end);
    const auto position = static_cast<size_t>(piece.data() - begin);
    if (is_json) {
      std::optional<std::string> document;
      try {
        if (options.encoding == TextEncoding::kUtf8)
          check_utf8(piece, position, place, options);
        document = document_of_line(piece, position, place, options);
      } catch (const DataError& error) {
        if (!on_bad_line)
          throw;
        on_bad_line(error);
      }
      if (document)
        handle({.text = *document});
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
