// A JSON list as lines, one element each: data sets of conversations are often
// one list in one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "brigade/data/byte_stream.h"

namespace brigade {

// Passes another stream on. Where that begins with [, after white space and a
// byte order mark, its elements come out one per line: line ends between the
// tokens of an element become spaces, commas between elements line ends. Holds
// nothing of the file; it looks only for where an element ends, and the reader
// of the lines checks what they hold. Any other stream passes as it is.
class JsonListStream : public ByteStream {
 public:
  // `name` is how errors call the file.
  JsonListStream(std::unique_ptr<ByteStream> stream, std::string name);

  // Throws DataError for a list that does not end, for what follows one, and
  // for a comma without an element.
  size_t read(char* out, size_t size) override;
  uint64_t file_position() const override { return stream_->file_position(); }
  // The lines that come out before the first element of a list whose [ was
  // read; std::nullopt: there is no list, or none yet.
  std::optional<uint64_t> lines_before() const {
    const bool is_list = place_ != Place::kFront && place_ != Place::kPlain;
    return is_list ? std::optional(lines_before_) : std::nullopt;
  }

 private:
  //   kFront --[--> kElement <--"--> kString --\--> kEscape
  //   kElement --last ]--> kBehind     kFront --anything else--> kPlain
  enum class Place { kFront, kPlain, kElement, kString, kEscape, kBehind };
  // What comes out for `c`; '\0': nothing.
  char next(char c);
  char next_of_element(char c);
  void end_element();
  [[noreturn]] void fail(const char* what) const;

  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  Place place_ = Place::kFront;
  uint64_t offset_ = 0;  // of the character that is looked at
  int64_t depth_ = 0;    // of brackets and braces inside the list
  uint64_t lines_before_ = 0;
  bool has_content_ = false;  // the element
  bool has_comma_ = false;    // one stands in front of it
};

}  // namespace brigade
