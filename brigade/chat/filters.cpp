// Jinja's filters.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "brigade/base/utf8.h"
#include "brigade/chat/builtins.h"
#include "brigade/chat/numbers.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade::jinja {
namespace {

using Filter = Value (*)(const Value&, const CallArguments&);

// The arguments behind the first `count` ones.
CallArguments without_first(const CallArguments& arguments, size_t count) {
  CallArguments rest = arguments;
  rest.positional.erase(
      rest.positional.begin(),
      rest.positional.begin() +
          static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

// "a.b" is the attribute b of the attribute a; a number an item.
Value nested_attribute(Value value, const Value& path) {
  if (!path.is_text())
    return item_of(value, path);
  std::string_view rest = path.text().bytes();
  while (true) {
    const size_t dot = rest.find('.');
    value = attribute_of(value, std::string(rest.substr(0, dot)));
    if (dot == std::string_view::npos)
      return value;
    rest.remove_prefix(dot + 1);
  }
}

Value tojson_filter(const Value& value, const CallArguments& arguments) {
  JsonStyle style;
  const int64_t absent = -1;
  const int64_t indent = integer_argument(arguments, 1, "indent", absent);
  // transformers' has ensure_ascii first, and all of them are given by name.
  if (!arguments.positional.empty())
    throw Fault("tojson() takes arguments by name alone");
  if (indent >= 0) {
    style.indent = indent;
    style.item_separator = ",";
  }
  if (const Value* separators = arguments.find(9, "separators");
      separators != nullptr && separators->is_list()) {
    const List& list = separators->list();
    if (list.size() != 2)
      throw Fault("separators of tojson() are two strings");
    style.item_separator = list[0].printed().bytes();
    style.key_separator = list[1].printed().bytes();
  }
  if (const Value* sorts = arguments.find(9, "sort_keys"))
    style.sorts_keys = sorts->is_true();
  if (const Value* ascii = arguments.find(9, "ensure_ascii");
      ascii != nullptr && ascii->is_true())
    throw Fault("tojson(ensure_ascii=true) is not supported");
  return to_json(value, style);
}

Value default_filter(const Value& value, const CallArguments& arguments) {
  const Value* otherwise = arguments.find(0, "default_value");
  const Value* checks_truth = arguments.find(1, "boolean");
  const bool replaces =
      value.is_undefined() ||
      (checks_truth != nullptr && checks_truth->is_true() && !value.is_true());
  if (!replaces)
    return value;
  return otherwise == nullptr ? Value("") : *otherwise;
}

Value join_filter(const Value& value, const CallArguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  List items;
  for (const Value& item : items_of(value))
    items.push_back(attribute ? nested_attribute(item, *attribute) : item);
  return *call_method(
      separator ? Value(separator->printed()) : Value(""),
      "join",
      {.positional = {items}, .named = {}});
}

Value items_filter(const Value& value, const CallArguments&) {
  if (value.is_undefined())
    return List{};
  if (!value.is_dict())
    throw Fault(fmt::format(
        "'items' takes a mapping, not a value of type {}", value.type()));
  return *call_method(value, "items", {});
}

Value reverse_filter(const Value& value, const CallArguments&) {
  List items = items_of(value);
  std::reverse(items.begin(), items.end());
  if (!value.is_text())
    return items;
  return *call_method("", "join", {.positional = {items}, .named = {}});
}

Value first_filter(const Value& value, const CallArguments&) {
  const List items = items_of(value);
  return items.empty() ? Value(Undefined{"first"}) : items.front();
}

Value last_filter(const Value& value, const CallArguments&) {
  const List items = items_of(value);
  return items.empty() ? Value(Undefined{"last"}) : items.back();
}

// As Jinja has them: "42.9"|int is 42, and what is no number the default.
Value int_filter(const Value& value, const CallArguments& arguments) {
  const Value* given = arguments.find(0, "default");
  const Value otherwise = given == nullptr ? Value(int64_t{0}) : *given;
  if (integer_argument(arguments, 1, "base", 10) != 10)
    throw Fault("'int' takes numbers of base 10 alone here");
  if (value.is_undefined())
    throw Fault(fmt::format("'{}' is undefined", value.undefined_name()));
  if (value.is_large_integer())
    return value;
  if (value.is_float() && std::isnan(value.number()))
    return otherwise;
  if (value.is_float() && std::isinf(value.number()))
    throw Fault(fmt::format("{} is no whole number", value.shown().bytes()));
  if (value.is_float())
    return whole_part(value.number());
  if (value.is_number())
    return value.integer();
  if (!value.is_text())
    return otherwise;
  if (const auto whole = whole_from_text(value.text()))
    return *whole;
  const auto number = float_from_text(value.text());
  return number && std::isfinite(*number) ? whole_part(*number) : otherwise;
}

Value float_filter(const Value& value, const CallArguments& arguments) {
  const Value* given = arguments.find(0, "default");
  const Value otherwise = given == nullptr ? Value(0.0) : *given;
  if (value.is_undefined())
    throw Fault(fmt::format("'{}' is undefined", value.undefined_name()));
  if (value.is_number())
    return value.number();
  if (!value.is_text() && !value.is_large_integer())
    return otherwise;
  const auto number = float_from_text(value.printed());
  return number ? Value(*number) : otherwise;
}

Value abs_filter(const Value& value, const CallArguments&) {
  if (value.is_float())
    return std::abs(value.number());
  if (!value.is_number())
    throw Fault("'abs' takes a number");
  return std::abs(value.integer());
}

// The items of which a test is true, or false: as they are, or with
// `by_attribute` of an attribute that the first argument names.
template <bool wants, bool by_attribute>
Value select_filter(const Value& value, const CallArguments& arguments) {
  constexpr size_t kTest = by_attribute ? 1 : 0;
  if (arguments.positional.size() < kTest)
    throw Fault("an attribute to look at is missing");
  List chosen;
  for (const Value& item : items_of(value)) {
    const Value tested =
        by_attribute ? nested_attribute(item, arguments.positional[0]) : item;
    const bool passes =
        arguments.positional.size() <= kTest
            ? tested.is_true()
            : passes_test(
                  text_argument(arguments, kTest, "test").bytes(),
                  tested,
                  without_first(arguments, kTest + 1));
    if (passes == wants)
      chosen.push_back(item);
  }
  return chosen;
}

Value map_filter(const Value& value, const CallArguments& arguments) {
  const Value* attribute = arguments.find(9, "attribute");
  const Value* otherwise = arguments.find(9, "default");
  List result;
  for (const Value& item : items_of(value)) {
    if (attribute == nullptr) {
      result.push_back(apply_filter(
          text_argument(arguments, 0, "filter").bytes(),
          item,
          without_first(arguments, 1)));
      continue;
    }
    const Value found = nested_attribute(item, *attribute);
    result.push_back(found.is_undefined() && otherwise ? *otherwise : found);
  }
  return result;
}

// As Jinja sorts: without regard to case, unless case_sensitive is given.
struct SortKey {
  bool is_case_sensitive = false;

  int operator()(const Value& left, const Value& right) const {
    if (left.is_text() && right.is_text() && !is_case_sensitive) {
      const auto lower = [](const Value& value) {
        return *call_method(value, "lower", {});
      };
      return *compare(lower(left), lower(right));
    }
    const auto order = compare(left, right);
    if (!order)
      throw Fault(fmt::format(
          "values of types {} and {} cannot be sorted",
          left.type(),
          right.type()));
    return *order;
  }
};

SortKey sort_key(const CallArguments& arguments, size_t index) {
  const Value* sensitive = arguments.find(index, "case_sensitive");
  return {sensitive != nullptr && sensitive->is_true()};
}

bool sorts_reverse(const CallArguments& arguments, size_t index) {
  const Value* reverse = arguments.find(index, "reverse");
  return reverse != nullptr && reverse->is_true();
}

Value dictsort_filter(const Value& value, const CallArguments& arguments) {
  if (!arguments.positional.empty() || arguments.find(9, "by") != nullptr)
    throw Fault("dictsort sorts by key alone here");
  List items = items_filter(value, {}).list();
  const SortKey key = sort_key(arguments, 9);
  std::stable_sort(
      items.begin(), items.end(), [&](const Value& a, const Value& b) {
        return key(a.list()[0], b.list()[0]) < 0;
      });
  if (sorts_reverse(arguments, 9))
    std::reverse(items.begin(), items.end());
  return items;
}

Value sort_filter(const Value& value, const CallArguments& arguments) {
  const Value* attribute = arguments.find(2, "attribute");
  const auto keyed = [&](const Value& item) {
    return attribute ? nested_attribute(item, *attribute) : item;
  };
  List items = items_of(value);
  const SortKey key = sort_key(arguments, 1);
  const bool is_reverse = sorts_reverse(arguments, 0);
  std::stable_sort(
      items.begin(), items.end(), [&](const Value& a, const Value& b) {
        const int order = key(keyed(a), keyed(b));
        return is_reverse ? order > 0 : order < 0;
      });
  return items;
}

Value unique_filter(const Value& value, const CallArguments& arguments) {
  const Value* attribute = arguments.find(1, "attribute");
  const SortKey order = sort_key(arguments, 0);
  List keys;
  List result;
  for (const Value& item : items_of(value)) {
    Value key = attribute ? nested_attribute(item, *attribute) : item;
    if (key.is_text() && !order.is_case_sensitive)
      key = *call_method(key, "lower", {});
    if (std::find(keys.begin(), keys.end(), key) != keys.end())
      continue;
    keys.push_back(std::move(key));
    result.push_back(item);
  }
  return result;
}

constexpr std::u32string_view kBeforeWord = U"-({[<";

// Words begin behind white space and - ( { [ <, unlike those of str.title().
Value title_filter(const Value& value, const CallArguments&) {
  const Text text = value.printed();
  const std::vector<size_t> offsets = code_point_offsets(text.bytes());
  std::string bytes;
  bool begins_word = true;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const char32_t c = code_point_at(text.bytes(), offsets[i]);
    if (is_python_space(c) || kBeforeWord.find(c) != kBeforeWord.npos) {
      append_utf8(bytes, c);
      begins_word = true;
    } else if (begins_word) {
      const Text letter = text.part(offsets[i], offsets[i + 1]);
      bytes += call_method(letter, "upper", {})->text().bytes();
      begins_word = false;
    } else {
      append_lowercase(bytes, c);
    }
  }
  return text.with_bytes(std::move(bytes));
}

Value indent_filter(const Value& value, const CallArguments& arguments) {
  const int64_t width = integer_argument(arguments, 0, "width", 4);
  const bool first = integer_argument(arguments, 1, "first", 0) != 0;
  const bool blank = integer_argument(arguments, 2, "blank", 0) != 0;
  if (width < 0 || width > 1000)
    throw Fault("'indent' takes a width of at most 1000");
  const std::string spaces(static_cast<size_t>(width), ' ');
  Text result;
  bool is_first = true;
  const Value lines = *call_method(
      value.printed(), "split", {.positional = {"\n"}, .named = {}});
  for (const Value& line : lines.list()) {
    if (!is_first)
      result.append("\n");
    if (is_first ? first : blank || !line.text().empty())
      result.append(spaces);
    is_first = false;
    result.append(line.text());
  }
  return result;
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> table = {
      {"tojson", tojson_filter},
      {"default", default_filter},
      {"d", default_filter},
      {"join", join_filter},
      {"items", items_filter},
      {"reverse", reverse_filter},
      {"first", first_filter},
      {"last", last_filter},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", abs_filter},
      {"select", select_filter<true, false>},
      {"reject", select_filter<false, false>},
      {"selectattr", select_filter<true, true>},
      {"rejectattr", select_filter<false, true>},
      {"map", map_filter},
      {"dictsort", dictsort_filter},
      {"sort", sort_filter},
      {"unique", unique_filter},
      {"title", title_filter},
      {"indent", indent_filter}};
  return table;
}

}  // namespace

Value apply_filter(
    const std::string& name,
    const Value& operand,
    const CallArguments& arguments) {
  const auto found = filters().find(name);
  if (found != filters().end())
    return found->second(operand, arguments);
  if (name == "length" || name == "count")
    return length_of(operand);
  if (name == "list")
    return items_of(operand);
  if (name == "string")
    return operand.printed();
  if (name == "safe")
    return operand;
  if (name == "trim")
    return *call_method(operand.printed(), "strip", arguments);
  // Methods of strings.
  for (const char* method : {"upper", "lower", "capitalize", "replace"}) {
    if (name == method)
      return *call_method(operand.printed(), name, arguments);
  }
  throw Fault(fmt::format("the filter '{}' is not supported", name));
}

}  // namespace brigade::jinja
