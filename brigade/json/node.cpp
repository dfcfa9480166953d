#include "brigade/json/node.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/json/fault_text.h"
#include "brigade/json/parse.h"

namespace brigade {

JsonDocument::JsonDocument(
    std::string_view text,
    JsonSource source,
    const JsonLimits& limits)
    : text_(text), source_(std::move(source)) {
  std::vector<JsonFault> faults;
  auto value = parse_json(text, limits, faults);
  if (!faults.empty()) {
    const JsonFault& fault = faults.front();
    const JsonPlace place = place_of(text, fault.offset);
    throw DataError(fmt::format(
        "[{}] {}:{}:{}: {}",
        source_.module,
        source_.file,
        source_.first_line + place.line - 1,
        place.column,
        describe(fault)));
  }
  value_ = std::move(*value);
}

JsonNode JsonDocument::root() const {
  return {*this, value_, ""};
}

void JsonDocument::fail(std::string_view pointer, std::string_view problem)
    const {
  const JsonPlace place = place_of(text_, find_offset(text_, pointer));
  throw DataError(fmt::format(
      "[{}] {}:{}:{}: at {}: {}",
      source_.module,
      source_.file,
      source_.first_line + place.line - 1,
      place.column,
      pointer.empty() ? "/" : pointer,
      problem));
}

void JsonNode::fail(std::string_view problem) const {
  document_->fail(pointer_, problem);
}

void JsonNode::fail_at(std::string_view key, std::string_view problem) const {
  document_->fail(child_pointer(pointer_, key), problem);
}

void JsonNode::fail_type(std::string_view expected) const {
  fail(fmt::format("expected {}, found {}", expected, kind_of(*value_)));
}

void JsonNode::require_object() const {
  if (!value_->is_object())
    fail_type("an object");
}

JsonNode JsonNode::at(std::string_view key) const {
  require_object();
  const auto found = value_->find(key);
  if (found == value_->end())
    fail(fmt::format("the key \"{}\" is missing", key));
  return {*document_, *found, child_pointer(pointer_, key)};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  require_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null())
    return std::nullopt;
  return JsonNode(*document_, *found, child_pointer(pointer_, key));
}

size_t JsonNode::size() const {
  if (!value_->is_array())
    fail_type("an array");
  return value_->size();
}

std::vector<JsonNode> JsonNode::elements() const {
  std::vector<JsonNode> all;
  for (size_t i = 0; i < size(); ++i)
    all.push_back(element(i));
  return all;
}

JsonNode JsonNode::element(size_t index) const {
  return {
      *document_,
      (*value_)[index],
      child_pointer(pointer_, std::to_string(index))};
}

const std::string& JsonNode::string() const {
  if (!value_->is_string())
    fail_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean())
    fail_type("true or false");
  return value_->get<bool>();
}

bool JsonNode::boolean_at(std::string_view key, bool when_absent) const {
  const auto child = find(key);
  return child ? child->boolean() : when_absent;
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  if (!value_->is_number_integer())
    fail(fmt::format("expected an integer, found {}", show_json(*value_)));
  const bool is_too_large =
      value_->is_number_unsigned() &&
      value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = is_too_large ? INT64_MAX : value_->get<int64_t>();
  if (is_too_large || number < low || number > high)
    fail(fmt::format("{} is outside {} to {}", value_->dump(), low, high));
  return number;
}

}  // namespace brigade
