#include "brigade/data/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "brigade/base/byte_order_mark.h"
#include "brigade/base/check.h"
#include "brigade/base/units.h"
#include "brigade/data/table_stream.h"
#include "brigade/files/read_once.h"
#include "brigade/json/string_member.h"

namespace brigade {
namespace {

constexpr uint64_t kMaxLineBytes = 32 * MiB;
// The most bytes of an added token, with the white space that it takes along.
constexpr uint64_t kMaxTokenBytes = 4096;

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

size_t cut_of_words(std::string_view text, size_t limit) {
  BRIGADE_ASSERT(limit >= 4 && limit < text.size());
  // Best: a line end with text on both sides, or else a single space before a
  // word. No tokenizer's regex sees those cuts: runs of white space, which many
  // treat in a special way, stay whole, and so does a line end with the /
  // behind it, which GPT-4o's takes along. Then any line end.
  const size_t lowest = limit / 2;
  for (size_t cut = limit; cut > lowest; --cut) {
    if (text[cut - 1] == '\n' && !is_space(text[cut - 2]) &&
        !is_space(text[cut]) && text[cut] != '/')
      return cut;
  }
  for (size_t cut = std::min(limit, text.size() - 2); cut > lowest; --cut) {
    if (text[cut] == ' ' && !is_space(text[cut - 1]) &&
        !is_space(text[cut + 1]))
      return cut;
  }
  for (size_t cut = limit; cut > lowest; --cut) {
    if (text[cut - 1] == '\n')
      return cut;
  }
  // Between characters: not before a continuation byte of UTF-8.
  for (size_t cut = limit; cut > limit - 4; --cut) {
    if ((static_cast<unsigned char>(text[cut]) & 0xC0) != 0x80)
      return cut;
  }
  return limit;
}

}  // namespace

size_t find_cut(
    std::string_view text,
    size_t limit,
    const std::function<size_t(std::string_view, size_t)>& cut_before) {
  const size_t cut = cut_of_words(text, limit);
  const size_t allowed = cut_before ? cut_before(text, cut) : cut;
  // A text of nothing but added tokens is cut within one rather than not.
  return allowed > 0 ? allowed : cut;
}

TextReader::TextReader(std::vector<TextFile> files, const TextOptions& options)
    : files_(std::move(files)), options_(options) {
  BRIGADE_ASSERT(
      options_.block_bytes >= 16 + 2 * options_.document_separator.size(),
      "block_bytes {}",
      options_.block_bytes);
}

bool TextReader::open_next_file() {
  if (next_file_ == files_.size())
    return false;
  const TextFile& file = files_[next_file_];
  stream_ = file.is_table
                ? open_table(
                      file.path,
                      {.column = options_.json_key, .python = options_.python})
                : open_byte_stream(file.path);
  list_ = nullptr;
  if (file.format == TextFormat::kJsonLines && !file.is_table) {
    auto list = std::make_unique<JsonListStream>(
        std::move(stream_), input_name(file.path));
    list_ = list.get();
    stream_ = std::move(list);
  }
  format_ = file.format;
  ++next_file_;
  at_end_ = false;
  offset_ = 0;
  line_ = 1;
  inside_document_ = false;
  return true;
}

// Reads until the buffer holds size_bytes or the file ends.
void TextReader::fill(uint64_t size_bytes) {
  if (at_end_ || buffer_.size() >= size_bytes)
    return;
  const size_t held = buffer_.size();
  buffer_.resize(size_bytes);
  const size_t count = stream_->read(buffer_.data() + held, size_bytes - held);
  buffer_.resize(held + count);
  at_end_ = buffer_.size() < size_bytes;
}

// The format that the buffer shows, which holds the file's beginning.
TextFormat TextReader::format_by_content() const {
  const std::string path = input_name(files_[next_file_ - 1].path);
  const size_t zero = buffer_.find('\0');
  if (zero != std::string::npos) {
    throw DataError(fmt::format(
        "[{}] at byte {}: a zero byte, so this is not text; give text or JSON "
        "lines (plain, .gz or .zst), or name the format with --format",
        path,
        zero));
  }
  std::string_view text(buffer_);
  if (text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  const std::string_view line = text.substr(0, text.find('\n'));
  const bool is_whole = line.size() < text.size() || at_end_;
  if (!is_whole)
    return line.starts_with("{\"") ? TextFormat::kJsonLines
                                   : TextFormat::kPlain;
  StringMember member;
  const bool is_object = !find_string_member(line, options_.json_key, member) &&
                         member.outcome != StringMember::Outcome::kNoObject;
  return is_object ? TextFormat::kJsonLines : TextFormat::kPlain;
}

// Where the last whole line in the buffer ends; fills it up to a line at least.
size_t TextReader::find_line_end() {
  uint64_t size = options_.block_bytes;
  while (true) {
    if (buffer_.size() < size)
      return buffer_.size();  // the file's end
    const size_t line_end = buffer_.rfind('\n');
    if (line_end != std::string::npos)
      return line_end + 1;
    if (size > kMaxLineBytes) {
      throw DataError(fmt::format(
          "[{}] at byte {}, line {}: the line is longer than 32 MiB; .jsonl "
          "has one document per line, tables one per row",
          input_name(files_[next_file_ - 1].path),
          offset_,
          line_));
    }
    size *= 2;
    fill(size);
  }
}

// Where the last separator in the buffer begins that begins before `limit`, as
// splitting from left to right finds them (they may overlap: three line ends
// hold one separator of two); npos if there is none.
size_t TextReader::find_last_separator(size_t limit) const {
  const std::string& separator = options_.document_separator;
  size_t last = std::string::npos;
  if (separator.empty())
    return last;
  size_t found = buffer_.find(separator);
  while (found < limit) {
    last = found;
    found = buffer_.find(separator, found + separator.size());
  }
  return last;
}

// Gives out the first text_bytes of the buffer and drops the skipped_bytes
// behind them.
void TextReader::take(
    size_t text_bytes,
    size_t skipped_bytes,
    TextBlock& block) {
  const size_t taken = text_bytes + skipped_bytes;
  block.file = static_cast<uint32_t>(next_file_ - 1);
  block.offset = offset_;
  block.line = line_;
  block.lines_before_list = list_ ? list_->lines_before() : std::nullopt;
  block.continues = inside_document_;
  offset_ += taken;
  line_ += static_cast<uint64_t>(
      std::count(buffer_.begin(), buffer_.begin() + taken, '\n'));
  // The buffer is given away and only what is left of it copied.
  std::string rest = buffer_.substr(taken);
  buffer_.resize(text_bytes);
  block.text = std::move(buffer_);
  buffer_ = std::move(rest);
}

bool TextReader::next(TextBlock& block) {
  if (stream_ == nullptr && !open_next_file())
    return false;
  const std::string& separator = options_.document_separator;
  // More than a block, so that a cut always leaves something behind, the file's
  // last block is known to be the last, and a token across a cut is seen whole.
  fill(options_.block_bytes + (options_.cut_before ? kMaxTokenBytes : 1));
  if (!format_)
    format_ = format_by_content();
  block.format = *format_;

  if (block.format == TextFormat::kJsonLines) {
    take(find_line_end(), 0, block);
    block.ends_document = true;
  } else if (buffer_.size() <= options_.block_bytes) {
    take(buffer_.size(), 0, block);
    block.ends_document = true;
  } else {
    const size_t limit =
        options_.block_bytes - (separator.empty() ? 0 : separator.size() - 1);
    const size_t last = find_last_separator(limit);
    if (last != std::string::npos) {
      take(last, separator.size(), block);
      block.ends_document = true;
    } else {
      take(find_cut(buffer_, limit, options_.cut_before), 0, block);
      block.ends_document = false;
    }
  }
  inside_document_ = !block.ends_document;
  block.bytes_read = finished_bytes_ + stream_->file_position();
  if (at_end_ && buffer_.empty()) {
    finished_bytes_ = block.bytes_read;
    stream_ = nullptr;
  }
  return true;
}

}  // namespace brigade
