// What a template takes out of values: attributes, items, characters.
#include <fmt/format.h>

#include "brigade/chat/builtins.h"

namespace brigade::jinja {

Value attribute_of(const Value& operand, const std::string& name) {
  if (operand.is_undefined())
    throw Fault(fmt::format("'{}' is undefined", operand.undefined_name()));
  if (operand.is_dict()) {
    if (const Value* found = operand.dict().find(name))
      return *found;
  }
  return Undefined{name};
}

namespace {

// The place of Python's index, which counts from the end where it is negative.
std::optional<size_t> place_of(int64_t index, size_t size) {
  const auto count = static_cast<int64_t>(size);
  const int64_t place = index < 0 ? index + count : index;
  if (place < 0 || place >= count)
    return std::nullopt;
  return static_cast<size_t>(place);
}

}  // namespace

Value item_of(const Value& operand, const Value& key) {
  if (operand.is_undefined())
    throw Fault(fmt::format("'{}' is undefined", operand.undefined_name()));
  if (key.is_text() && operand.is_dict())
    return attribute_of(operand, key.text().bytes());
  const Undefined missing{key.printed().bytes()};
  if (!key.is_integer() && !key.is_bool())
    return missing;
  if (operand.is_list()) {
    const auto place = place_of(key.integer(), operand.list().size());
    return place ? operand.list()[*place] : Value(missing);
  }
  if (operand.is_text()) {
    const auto offsets = code_point_offsets(operand.text().bytes());
    const auto place = place_of(key.integer(), offsets.size() - 1);
    return place ? Value(operand.text().part(
                       offsets[*place], offsets[*place + 1]))
                 : Value(missing);
  }
  return missing;
}

List items_of(const Value& value) {
  if (value.is_list())
    return value.list();
  List items;
  if (value.is_dict() && !value.dict().is_namespace) {
    for (const auto& entry : value.dict().entries)
      items.emplace_back(entry.first);
    return items;
  }
  if (value.is_text()) {
    const auto offsets = code_point_offsets(value.text().bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      items.emplace_back(value.text().part(offsets[i], offsets[i + 1]));
    return items;
  }
  if (value.is_undefined())
    return items;
  throw Fault(fmt::format("a value of type {} has no items", value.type()));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text())
      throw Fault(fmt::format(
          "'in' looks for a string in a string, not for a value of type {}",
          item.type()));
    return container.text().bytes().find(item.text().bytes()) !=
           std::string::npos;
  }
  if (container.is_dict())
    return item.is_text() &&
           container.dict().find(item.text().bytes()) != nullptr;
  for (const Value& other : items_of(container)) {
    if (other == item)
      return true;
  }
  return false;
}

int64_t length_of(const Value& value) {
  if (value.is_text())
    return static_cast<int64_t>(
        code_point_offsets(value.text().bytes()).size() - 1);
  if (value.is_dict() && !value.dict().is_namespace)
    return static_cast<int64_t>(value.dict().entries.size());
  return static_cast<int64_t>(items_of(value).size());
}

const Text&
text_argument(const CallArguments& arguments, size_t index, const char* name) {
  const Value* found = arguments.find(index, name);
  if (found == nullptr || !found->is_text())
    throw Fault(fmt::format("argument '{}' must be a string", name));
  return found->text();
}

int64_t integer_argument(
    const CallArguments& arguments,
    size_t index,
    const char* name,
    int64_t when_absent) {
  const Value* found = arguments.find(index, name);
  if (found == nullptr || found->is_none())
    return when_absent;
  if (!found->is_integer() && !found->is_bool())
    throw Fault(fmt::format("argument '{}' must be a whole number", name));
  return found->integer();
}

}  // namespace brigade::jinja
