#include "brigade/tokenizer/tokenizer_json_node.h"

#include "brigade/base/error.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

constexpr int kMaxDepth = 16;

[[noreturn]] void throw_at(
    const std::string& file,
    const std::string& path,
    std::string_view message) {
  throw DataError(fmt::format(
      "[tokenizer] {}: at {}: {}", file, path.empty() ? "/" : path, message));
}

}  // namespace

void JsonNode::fail(std::string_view message) const {
  throw_at(file_, path_, message);
}

void JsonNode::fail_at(std::string_view key, std::string_view message) const {
  throw_at(file_, child_path(key), message);
}

std::string JsonNode::child_path(std::string_view key) const {
  std::string path = path_ + "/";
  for (const char c : key) {
    if (c == '~')
      path += "~0";
    else if (c == '/')
      path += "~1";
    else
      path += c;
  }
  return path;
}

void JsonNode::require_object() const {
  if (!value_->is_object())
    fail(fmt::format("expected an object, found {}", value_->type_name()));
}

JsonNode JsonNode::at(std::string_view key) const {
  require_object();
  const auto found = value_->find(key);
  if (found == value_->end())
    fail(fmt::format("the key \"{}\" is missing", key));
  return {*found, file_, child_path(key)};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  require_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null())
    return std::nullopt;
  return JsonNode(*found, file_, child_path(key));
}

size_t JsonNode::size() const {
  if (!value_->is_array())
    fail(fmt::format("expected an array, found {}", value_->type_name()));
  return value_->size();
}

JsonNode JsonNode::element(size_t index) const {
  return {(*value_)[index], file_, child_path(std::to_string(index))};
}

const std::string& JsonNode::string() const {
  if (!value_->is_string())
    fail(fmt::format("expected a string, found {}", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean())
    fail(fmt::format("expected true or false, found {}", value_->type_name()));
  return value_->get<bool>();
}

bool JsonNode::boolean_at(std::string_view key, bool when_absent) const {
  const auto child = find(key);
  return child ? child->boolean() : when_absent;
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  if (!value_->is_number_integer())
    fail(fmt::format("expected an integer, found {}", value_->type_name()));
  const bool too_large =
      value_->is_number_unsigned() &&
      value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value_->get<int64_t>();
  if (too_large || number < low || number > high)
    fail(fmt::format("{} is outside {} to {}", value_->dump(), low, high));
  return number;
}

char32_t JsonNode::character() const {
  const std::string& text = string();
  if (text.empty() || utf8_length(text[0]) != text.size())
    fail(fmt::format("expected one character, found \"{}\"", text));
  return utf8_code_point(text, 0);
}

const std::string& JsonNode::type() const {
  return at("type").string();
}

void JsonNode::refuse(std::string_view what) const {
  fail(fmt::format(
      "{} is not supported; Brigade interprets the parts that BPE tokenizers "
      "of the Llama and GPT families use",
      what));
}

void JsonNode::require_depth(int depth) const {
  if (depth > kMaxDepth)
    fail(fmt::format("sequences nest deeper than {}", kMaxDepth));
}

}  // namespace brigade
