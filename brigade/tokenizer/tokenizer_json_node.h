// One place in a tokenizer.json: a value with the JSON pointer that leads to
// it, so that every complaint can say where.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

class JsonNode {
 public:
  // The root. `value` and everything below it must outlive the nodes.
  JsonNode(const nlohmann::json& value, std::string file)
      : value_(&value), file_(std::move(file)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return file_; }
  // JSON pointer; "" is the whole document.
  const std::string& path() const { return path_; }

  // Throws DataError "[tokenizer] FILE: at PATH: MESSAGE".
  [[noreturn]] void fail(std::string_view message) const;
  // The same for the child `key` (an index or a name).
  [[noreturn]] void fail_at(std::string_view key, std::string_view message)
      const;

  // The child that must exist.
  JsonNode at(std::string_view key) const;
  // The child, unless it is absent or null.
  std::optional<JsonNode> find(std::string_view key) const;
  size_t size() const;  // of an array; fails on anything else
  JsonNode element(size_t index) const;

  void require_object() const;
  const std::string& string() const;
  bool boolean() const;
  bool boolean_at(std::string_view key, bool when_absent) const;
  int64_t integer(int64_t low, int64_t high) const;
  // A string of exactly one character.
  char32_t character() const;

  // at("type").string(), where "type" must be a string.
  const std::string& type() const;
  // The complaint about a part that Hugging Face may know but Brigade does
  // not interpret.
  [[noreturn]] void refuse(std::string_view what) const;
  // Sequences may nest, but not without end.
  void require_depth(int depth) const;

 private:
  JsonNode(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}
  std::string child_path(std::string_view key) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace brigade
