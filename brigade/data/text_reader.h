// Text files as blocks of bounded size, in order, so that any amount of text
// passes through little memory; and blocks as pieces of documents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/data/byte_stream.h"
#include "brigade/data/json_list_stream.h"
#include "brigade/data/text_files.h"
#include "brigade/options/choice.h"

namespace brigade {

enum class TextEncoding { kUtf8, kLatin1 };
// Their names.
template <>
inline constexpr std::array kChoices<TextEncoding>{
    Choice{TextEncoding::kUtf8, "utf-8"},
    Choice{TextEncoding::kLatin1, "latin1"}};
// What becomes of a line of JSON that holds no document.
enum class BadLines { kRefuse, kSkip };

struct TextOptions {
  TextEncoding encoding = TextEncoding::kUtf8;
  // The member of each JSON object, or the column of a table, with the text;
  // "": all columns of a table.
  std::string json_key = "text";
  std::string python = "python3";  // that reads tables (table_stream.h)
  // Between documents of a plain file; empty: a file is one document.
  std::string document_separator;
  // Where a document that is too long may be cut, at or in front of the second
  // argument: see Tokenizer::cut_before(). Empty: anywhere between characters.
  std::function<size_t(std::string_view, size_t)> cut_before;
  uint64_t block_bytes = 256 << 10;  // about; a longer line of JSON is whole
  // Whether a message may name the option of `prepare` that would help.
  bool are_of_prepare = true;
};

// A stretch of one file: whole lines of JSON, or plain text that may begin or
// end in the middle of a document.
struct TextBlock {
  uint32_t file = 0;  // index into the reader's files
  TextFormat format = TextFormat::kPlain;
  uint64_t offset = 0;  // of the text in the decompressed file
  uint64_t line = 1;    // in which the text begins, counted from 1
  // The lines before the first element of a JSON list, whose elements are
  // lines.
  std::optional<uint64_t> lines_before_list = {};
  bool continues = false;     // the document began in an earlier block
  bool ends_document = true;  // the last document ends with the block
  uint64_t bytes_read = 0;    // on disk, read so far, of all files
  std::string text;
};

// Where to cut text that is too long, in (0, limit]: in its last half after a
// line or before a word, or at least between two characters, and where
// `cut_before`, if there is one, allows it.
// Precondition: 4 <= limit < text.size().
size_t find_cut(
    std::string_view text,
    size_t limit,
    const std::function<size_t(std::string_view, size_t)>& cut_before = {});

class TextReader {
 public:
  TextReader(std::vector<TextFile> files, const TextOptions& options);

  const std::vector<TextFile>& files() const { return files_; }

  // The next block, or false at the end. Throws DataError for damaged
  // compression, for a line of JSON longer than 32 MiB, and for a file of
  // unknown format that is not text.
  bool next(TextBlock& block);

 private:
  bool open_next_file();
  void fill(uint64_t size_bytes);
  TextFormat format_by_content() const;
  size_t find_line_end();
  size_t find_last_separator(size_t limit) const;
  void take(size_t text_bytes, size_t skipped_bytes, TextBlock& block);

  std::vector<TextFile> files_;
  TextOptions options_;
  size_t next_file_ = 0;
  uint64_t finished_bytes_ = 0;
  std::unique_ptr<ByteStream> stream_;    // null between files
  const JsonListStream* list_ = nullptr;  // the stream, where it may hold one
  std::optional<TextFormat> format_;  // of the stream; absent: not known yet
  bool at_end_ = false;               // of the stream
  std::string buffer_;                // read, not given out yet
  uint64_t offset_ = 0;               // of the buffer in the file
  uint64_t line_ = 1;
  bool inside_document_ = false;
};

// A stretch of one document, valid UTF-8.
struct TextPiece {
  std::string_view text;
  bool continues = false;
  bool ends_document = true;
};

// Calls `handle` for each piece of the block, in order. Throws DataError
// naming file, byte offset and line for text that is not in the encoding, a
// line that is not a JSON object and one without the string json_key; a bad
// line of JSON goes to `on_bad_line` instead, if there is one. Latin-1 is
// converted to UTF-8; a byte order mark at the file's start is dropped.
// Thread-safe.
void for_each_piece(
    const TextBlock& block,
    const TextFile& file,
    const TextOptions& options,
    const std::function<void(const TextPiece&)>& handle,
    const std::function<void(const DataError&)>& on_bad_line = {});

}  // namespace brigade
