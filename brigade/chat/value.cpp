#include "brigade/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "brigade/chat/record.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade::jinja {

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key)
      return &value;
  }
  return nullptr;
}

Value& Dict::operator[](const std::string& key) {
  for (auto& [name, value] : entries) {
    if (name == key)
      return value;
  }
  return entries.emplace_back(key, Value()).second;
}

const Value* CallArguments::find(size_t index, std::string_view name) const {
  if (index < positional.size())
    return &positional[index];
  for (const auto& [other, value] : named) {
    if (other == name)
      return &value;
  }
  return nullptr;
}

int64_t Value::integer() const {
  return is_bool() ? static_cast<int64_t>(std::get<bool>(data_))
                   : std::get<int64_t>(data_);
}

double Value::number() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::is_true() const {
  if (is_undefined() || is_none())
    return false;
  if (is_number())
    return number() != 0;
  if (is_text())
    return !text().empty();
  if (is_list())
    return !list().empty();
  if (is_dict())
    return dict().is_namespace || !dict().entries.empty();
  return true;
}

std::string float_text(double value) {
  if (std::isnan(value))
    return "nan";
  if (std::isinf(value))
    return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos)
    text += ".0";
  return text;
}

namespace {

// Python's repr() of a string.
std::string shown_text(const std::string& bytes) {
  const bool has_single = bytes.find('\'') != std::string::npos;
  const bool has_double = bytes.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string result(1, quote);
  const std::vector<size_t> offsets = code_point_offsets(bytes);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const char32_t c = code_point_at(bytes, offsets[i]);
    if (c == static_cast<unsigned char>(quote) || c == '\\')
      result += {'\\', static_cast<char>(c)};
    else if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else if (is_printable(c))
      result.append(bytes, offsets[i], offsets[i + 1] - offsets[i]);
    else if (c < 0x100)
      result += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000)
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      result += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
  return result + quote;
}

void append_json_string(const Text& text, Text& out) {
  std::string result = "\"";
  for (const char c : text.bytes()) {
    switch (c) {
      case '"':
        result += "\\\"";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\b':
        result += "\\b";
        break;
      case '\f':
        result += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          result += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        else
          result += c;
    }
  }
  out.append(text.with_bytes(result + "\""));
}

// Writes items between `open` and `close`, as json.dumps lays them out.
template <typename WriteItem>
void append_json_items(
    char open,
    char close,
    size_t count,
    const JsonStyle& style,
    int64_t depth,
    Text& out,
    const WriteItem& write_item) {
  out.append(std::string_view(&open, 1));
  const auto new_line = [&](int64_t levels) {
    if (style.indent) {
      out.append("\n");
      out.append(std::string(static_cast<size_t>(*style.indent * levels), ' '));
    }
  };
  for (size_t i = 0; i < count; ++i) {
    if (i > 0)
      out.append(style.item_separator);
    new_line(depth + 1);
    write_item(i);
  }
  if (count > 0)
    new_line(depth);
  out.append(std::string_view(&close, 1));
}

void append_json(
    const Value& value,
    const JsonStyle& style,
    int64_t depth,
    Text& out) {
  if (value.is_none())
    return out.append("null");
  if (value.is_bool())
    return out.append(value.is_true() ? "true" : "false");
  if (value.is_integer())
    return out.append(fmt::format("{}", value.integer()));
  if (value.is_large_integer())
    return out.append(value.digits());
  if (value.is_float())
    return out.append(float_text(value.number()));
  if (value.is_text())
    return append_json_string(value.text(), out);
  if (value.is_list()) {
    const List& list = value.list();
    return append_json_items(
        '[', ']', list.size(), style, depth, out, [&](size_t i) {
          append_json(list[i], style, depth + 1, out);
        });
  }
  if (!value.is_dict())
    throw Fault(fmt::format("a value of type {} is no JSON", value.type()));
  auto entries = value.dict().entries;
  if (style.sorts_keys) {
    std::stable_sort(
        entries.begin(), entries.end(), [](const auto& a, const auto& b) {
          return a.first < b.first;
        });
  }
  append_json_items('{', '}', entries.size(), style, depth, out, [&](size_t i) {
    append_json_string(Text(entries[i].first), out);
    out.append(style.key_separator);
    append_json(entries[i].second, style, depth + 1, out);
  });
}

}  // namespace

Text Value::printed() const {
  if (is_text())
    return text();
  return is_undefined() ? Text() : shown();
}

Text Value::shown() const {
  if (is_undefined())
    return Text("Undefined");
  if (is_none())
    return Text("None");
  if (is_bool())
    return Text(is_true() ? "True" : "False");
  if (is_integer())
    return Text(fmt::format("{}", integer()));
  if (is_large_integer())
    return Text(digits());
  if (is_float())
    return Text(float_text(number()));
  if (is_text())
    return text().with_bytes(shown_text(text().bytes()));
  if (is_function())
    return Text("<function>");
  Text result(is_list() ? "[" : "{");
  const auto add = [&](const std::string& key, const Value& value) {
    result.append((result.size() > 1 ? ", " : "") + key);
    result.append(value.shown());
  };
  if (is_list()) {
    for (const Value& item : list())
      add("", item);
  } else {
    for (const auto& [key, value] : dict().entries)
      add(shown_text(key) + ": ", value);
  }
  result.append(is_list() ? "]" : "}");
  return result;
}

const char* Value::type() const {
  static constexpr const char* kNames[] = {
      "Undefined",
      "NoneType",
      "bool",
      "int",
      "float",
      "int beyond 64 bits",
      "str",
      "list",
      "dict",
      "function"};
  return kNames[data_.index()];
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number())
    return is_float() || other.is_float() ? number() == other.number()
                                          : integer() == other.integer();
  if (data_.index() != other.data_.index())
    return false;
  if (is_large_integer())
    return digits() == other.digits();
  if (is_text())
    return text().bytes() == other.text().bytes();
  if (is_list())
    return list() == other.list();
  if (is_dict()) {
    const Dict& left = dict();
    const Dict& right = other.dict();
    return left.entries.size() == right.entries.size() &&
           std::all_of(
               left.entries.begin(),
               left.entries.end(),
               [&](const auto& entry) {
                 const Value* found = right.find(entry.first);
                 return found != nullptr && *found == entry.second;
               });
  }
  if (is_function())
    return &function() == &other.function();
  return true;
}

std::optional<int> compare(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (!left.is_float() && !right.is_float())
      return left.integer() < right.integer()   ? -1
             : left.integer() > right.integer() ? 1
                                                : 0;
    const double difference = left.number() - right.number();
    return difference < 0 ? -1 : difference > 0 ? 1 : 0;
  }
  if (left.is_text() && right.is_text())
    return left.text().bytes().compare(right.text().bytes());
  return std::nullopt;
}

Text to_json(const Value& value, const JsonStyle& style) {
  Text out;
  append_json(value, style, 0, out);
  return out;
}

Value from_json(
    const nlohmann::ordered_json& json,
    std::optional<int32_t> message) {
  if (json.is_null())
    return None{};
  if (json.is_boolean())
    return json.get<bool>();
  if (const auto digits = large_integer(json))
    return LargeInteger{*digits};
  if (json.is_number_integer())
    return json.get<int64_t>();
  if (json.is_number())
    return json.get<double>();
  if (json.is_string()) {
    Text text(json.get<std::string>());
    if (message)
      text.mark(*message);
    return text;
  }
  if (json.is_array()) {
    List list;
    for (const auto& item : json)
      list.push_back(from_json(item, message));
    return list;
  }
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : json.items())
    dict->entries.emplace_back(key, from_json(value, message));
  return dict;
}

}  // namespace brigade::jinja
