// Reads a JSON document event by event, without building it: nlohmann's SAX
// parser behind an interface that knows where it is. Whatever is wrong is
// reported with the byte offset, the JSON pointer and a plain sentence; the
// library's own messages are not shown.
//
// PURE.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

struct JsonLimits {
  size_t max_bytes = size_t{1} << 30;
  // Documents are printed and destroyed by recursion.
  size_t max_depth = 64;
  // A key that an object holds twice is no fault, as for Python's json module.
  bool last_key_counts = false;
};

// What is wrong with a document.
struct JsonFault {
  std::string problem;  // "expected ',' or '}', found 'x'"
  size_t offset = 0;    // of the byte in the text, from 0
  // The value that was being read: "/training/seed"; "" is the document.
  std::string pointer;
};

// Line and column of a byte, both from 1, the column in bytes.
struct JsonPlace {
  size_t line = 1;
  size_t column = 1;
};
JsonPlace place_of(std::string_view text, size_t offset);

// "/a~1b/3" for the child "3" of "/a~1b": escapes the child's name.
std::string child_pointer(std::string_view pointer, std::string_view child);

// The place of the current event.
class JsonPosition {
 public:
  virtual ~JsonPosition() = default;
  virtual size_t offset() const = 0;  // of the event's first byte
  virtual size_t depth() const = 0;   // containers around it
  virtual std::string pointer() const = 0;
};

// Each returns whether to go on, by default true. Containers' own events count
// as one level outside their contents.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  // null, true or false, a number or a string.
  virtual bool scalar(nlohmann::json&& value, const JsonPosition& at) = 0;
  virtual bool begin_object(const JsonPosition&) { return true; }
  virtual bool key(std::string& /*name*/, const JsonPosition&) { return true; }
  virtual bool end_object(const JsonPosition&) { return true; }
  virtual bool begin_array(const JsonPosition&) { return true; }
  virtual bool end_array(const JsonPosition&) { return true; }
};

// std::nullopt when the whole text is one JSON value, or when the visitor
// stopped. Exceptions of the visitor pass through.
std::optional<JsonFault> visit_json(
    std::string_view text,
    const JsonLimits& limits,
    JsonVisitor& visitor);

// The offset of the first byte of the value that `pointer` leads to; of the
// innermost one that exists where the pointer goes on beyond it. `text` must
// be valid JSON.
size_t find_offset(std::string_view text, std::string_view pointer);

}  // namespace brigade
