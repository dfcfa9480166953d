// A JSON file and the values in it, each knowing where it is, so that every
// error names the file, line, column and JSON pointer. Errors are DataErrors:
//
//   [tokenizer] tokenizer.json:12:20: at /model/vocab: expected an object, ...
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/json/visit.h"

namespace brigade {

class JsonNode;

// How errors begin: "[module] file:".
struct JsonSource {
  std::string module;
  std::string file;
  // The line of the file on which the text begins: above 1 in a file that has
  // one document per line.
  size_t first_line = 1;
};

class JsonDocument {
 public:
  // Throws DataError for text that is not JSON, for a repeated key, and when a
  // limit is exceeded. `text` must outlive the document, and the document its
  // nodes.
  JsonDocument(
      std::string_view text,
      JsonSource source,
      const JsonLimits& limits = {});
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonNode root() const;
  const JsonSource& source() const { return source_; }

  // Throws DataError at the value of `pointer`, or at its nearest ancestor that
  // exists.
  [[noreturn]] void fail(std::string_view pointer, std::string_view problem)
      const;

 private:
  std::string_view text_;
  JsonSource source_;
  nlohmann::json value_;
};

class JsonNode {
 public:
  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return document_->source().file; }
  // JSON pointer; "" is the whole document.
  const std::string& pointer() const { return pointer_; }

  [[noreturn]] void fail(std::string_view problem) const;
  // The same for the child `key` (an index or a name).
  [[noreturn]] void fail_at(std::string_view key, std::string_view problem)
      const;

  // The child that must exist.
  JsonNode at(std::string_view key) const;
  // The child, unless it is absent or null.
  std::optional<JsonNode> find(std::string_view key) const;
  size_t size() const;  // of an array; fails on anything else
  JsonNode element(size_t index) const;
  std::vector<JsonNode> elements() const;  // of an array; else fails

  void require_object() const;
  const std::string& string() const;
  bool boolean() const;
  bool boolean_at(std::string_view key, bool when_absent) const;
  int64_t integer(int64_t low, int64_t high) const;

 private:
  friend class JsonDocument;
  JsonNode(
      const JsonDocument& document,
      const nlohmann::json& value,
      std::string pointer)
      : document_(&document), value_(&value), pointer_(std::move(pointer)) {}
  [[noreturn]] void fail_type(std::string_view expected) const;

  const JsonDocument* document_;
  const nlohmann::json* value_;
  std::string pointer_;
};

}  // namespace brigade
