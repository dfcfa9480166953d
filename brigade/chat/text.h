// A string that remembers where its characters come from: what a template
// prints of a message is found in the whole text by its marks, whatever the
// template did to it on the way (trimmed, split, joined), and without rendering
// a conversation twice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brigade::jinja {

// What bytes [begin, end) have to do with a message. Where an empty text of a
// message stands is a mark without bytes.
struct Mark {
  static constexpr int32_t kNoMessage = -1;
  enum class Kind {
    kContent,     // they come from it
    kGeneration,  // they are a {% generation %} block: a model's own words
  };

  size_t begin = 0;
  size_t end = 0;
  // The message's number. Of a block, that of the message which the loop around
  // it is at, or kNoMessage.
  int32_t message = 0;
  Kind kind = Kind::kContent;
  bool operator==(const Mark&) const = default;
};

// UTF-8 with marks, which may overlap. Ascending by where they end. Adjacent
// ones of a message's content are one; blocks stay apart.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}

  const std::string& bytes() const { return bytes_; }
  const std::vector<Mark>& marks() const { return marks_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // Bytes [begin, end), with their marks. An empty part is of the messages whose
  // marks it touches.
  Text part(size_t begin, size_t end) const;
  void append(const Text& other);
  void append(std::string_view bytes) { bytes_ += bytes; }
  // Marks all of it. Of an empty text there is no block.
  void mark(int32_t message, Mark::Kind kind = Mark::Kind::kContent);
  // The same marks over other bytes. Where the length differs each is over all
  // of them, and those of empty texts within are lost.
  Text with_bytes(std::string bytes) const;

 private:
  void add(const Mark& mark);

  std::string bytes_;
  std::vector<Mark> marks_;
};

enum class Sides { kLeft, kRight, kBoth };
// Python's strip, lstrip and rstrip. `characters`: those taken off; empty:
// white space.
Text strip(const Text& text, Sides sides, std::string_view characters = {});

// The code point that begins at `at`; of bytes that are no UTF-8 the byte.
char32_t code_point_at(std::string_view text, size_t at);

// Where each code point begins, and the size behind them. Bytes that are no
// UTF-8 count as one each.
std::vector<size_t> code_point_offsets(std::string_view text);

}  // namespace brigade::jinja
