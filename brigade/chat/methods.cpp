// Methods of Python's strings and dicts.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "brigade/chat/builtins.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade::jinja {
namespace {

using Method = Value (*)(const Text&, const CallArguments&);

// Absent: white space separates.
std::optional<std::string_view> separator_of(const CallArguments& arguments) {
  const Value* found = arguments.find(0, "sep");
  if (found == nullptr || found->is_none())
    return std::nullopt;
  const std::string& separator = text_argument(arguments, 0, "sep").bytes();
  if (separator.empty())
    throw Fault("an empty string separates nothing");
  return separator;
}

template <Sides sides>
Value strip_method(const Text& text, const CallArguments& arguments) {
  const Value* characters = arguments.find(0, "chars");
  if (characters == nullptr || characters->is_none())
    return strip(text, sides);
  const std::string& taken = text_argument(arguments, 0, "chars").bytes();
  return taken.empty() ? text : strip(text, sides, taken);
}

// At runs of white space, at most `most` times.
List split_at_space(const Text& text, int64_t most) {
  const std::vector<size_t> offsets = code_point_offsets(text.bytes());
  const size_t count = offsets.size() - 1;
  const auto next = [&](size_t from, bool wants_space) {
    while (from < count && is_python_space(code_point_at(
                               text.bytes(), offsets[from])) != wants_space)
      ++from;
    return from;
  };
  List parts;
  for (size_t begin = next(0, false); begin < count;) {
    if (static_cast<int64_t>(parts.size()) == most) {
      parts.emplace_back(text.part(offsets[begin], text.size()));
      return parts;
    }
    const size_t end = next(begin, true);
    parts.emplace_back(text.part(offsets[begin], offsets[end]));
    begin = next(end, false);
  }
  return parts;
}

Value split_method(const Text& text, const CallArguments& arguments) {
  const auto separator = separator_of(arguments);
  const int64_t most = integer_argument(arguments, 1, "maxsplit", -1);
  if (!separator)
    return split_at_space(text, most);
  List parts;
  size_t begin = 0;
  while (static_cast<int64_t>(parts.size()) != most) {
    const size_t end = text.bytes().find(*separator, begin);
    if (end == std::string::npos)
      break;
    parts.emplace_back(text.part(begin, end));
    begin = end + separator->size();
  }
  parts.emplace_back(text.part(begin, text.size()));
  return parts;
}

Value rsplit_method(const Text& text, const CallArguments& arguments) {
  const auto separator = separator_of(arguments);
  const int64_t most = integer_argument(arguments, 1, "maxsplit", -1);
  if (!separator)
    throw Fault("rsplit() without a separator is not supported");
  List parts;
  size_t end = text.size();
  while (static_cast<int64_t>(parts.size()) != most &&
         end >= separator->size()) {
    const size_t begin =
        text.bytes().rfind(*separator, end - separator->size());
    if (begin == std::string::npos)
      break;
    parts.emplace_back(text.part(begin + separator->size(), end));
    end = begin;
  }
  parts.emplace_back(text.part(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// As Python's splitlines() has it.
bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

Value splitlines_method(const Text& text, const CallArguments& arguments) {
  const bool keeps_ends = integer_argument(arguments, 0, "keepends", 0) != 0;
  const std::vector<size_t> offsets = code_point_offsets(text.bytes());
  const size_t count = offsets.size() - 1;
  List lines;
  for (size_t begin = 0; begin < count;) {
    size_t end = begin;
    while (end < count && !ends_line(code_point_at(text.bytes(), offsets[end])))
      ++end;
    size_t next = std::min(end + 1, count);
    if (text.bytes().compare(offsets[end], 2, "\r\n") == 0)
      ++next;
    lines.emplace_back(
        text.part(offsets[begin], offsets[keeps_ends ? next : end]));
    begin = next;
  }
  return lines;
}

template <typename Matches>
Value any_of_texts(const CallArguments& arguments, const Matches& matches) {
  const Value* found = arguments.find(0, "prefix");
  if (found != nullptr && found->is_list()) {
    const List& list = found->list();
    return std::any_of(list.begin(), list.end(), [&](const Value& item) {
      return item.is_text() && matches(item.text().bytes());
    });
  }
  return matches(text_argument(arguments, 0, "prefix").bytes());
}

Value startswith_method(const Text& text, const CallArguments& arguments) {
  return any_of_texts(arguments, [&](const std::string& prefix) {
    return text.bytes().starts_with(prefix);
  });
}

Value endswith_method(const Text& text, const CallArguments& arguments) {
  return any_of_texts(arguments, [&](const std::string& suffix) {
    return text.bytes().ends_with(suffix);
  });
}

Value removeprefix_method(const Text& text, const CallArguments& arguments) {
  const Text& prefix = text_argument(arguments, 0, "prefix");
  return text.bytes().starts_with(prefix.bytes())
             ? text.part(prefix.size(), text.size())
             : text;
}

Value removesuffix_method(const Text& text, const CallArguments& arguments) {
  const Text& suffix = text_argument(arguments, 0, "suffix");
  return text.bytes().ends_with(suffix.bytes())
             ? text.part(0, text.size() - suffix.size())
             : text;
}

Value replace_method(const Text& text, const CallArguments& arguments) {
  const Text& old = text_argument(arguments, 0, "old");
  const Text& now = text_argument(arguments, 1, "new");
  int64_t left = integer_argument(arguments, 2, "count", -1);
  if (old.empty())
    throw Fault("replace() of an empty string is not supported");
  Text result;
  size_t begin = 0;
  while (left-- != 0) {
    const size_t end = text.bytes().find(old.bytes(), begin);
    if (end == std::string::npos)
      break;
    result.append(text.part(begin, end));
    result.append(now);
    begin = end + old.size();
  }
  result.append(text.part(begin, text.size()));
  return result;
}

// Changes ASCII letters; others would need Unicode's tables of case.
template <typename Change>
Value with_case(const Text& text, const Change& change) {
  std::string bytes = text.bytes();
  bool is_first = true;
  for (char& c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80)
      throw Fault("the case of letters outside ASCII is not supported");
    c = static_cast<char>(change(byte, is_first));
    is_first = std::isalpha(byte) == 0;
  }
  return text.with_bytes(std::move(bytes));
}

Value upper_method(const Text& text, const CallArguments&) {
  return with_case(text, [](int c, bool) { return std::toupper(c); });
}

Value lower_method(const Text& text, const CallArguments&) {
  const std::vector<size_t> offsets = code_point_offsets(text.bytes());
  std::string bytes;
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    append_lowercase(bytes, code_point_at(text.bytes(), offsets[i]));
  return text.with_bytes(std::move(bytes));
}

Value title_method(const Text& text, const CallArguments&) {
  return with_case(text, [](int c, bool is_first) {
    return is_first ? std::toupper(c) : std::tolower(c);
  });
}

Value capitalize_method(const Text& text, const CallArguments&) {
  bool is_begin = true;
  return with_case(text, [&](int c, bool) {
    const int changed = is_begin ? std::toupper(c) : std::tolower(c);
    is_begin = false;
    return changed;
  });
}

Value join_method(const Text& text, const CallArguments& arguments) {
  const Value* items = arguments.find(0, "iterable");
  if (items == nullptr)
    throw Fault("join() needs a list");
  Text result;
  bool is_first = true;
  for (const Value& item : items_of(*items)) {
    if (!is_first)
      result.append(text);
    is_first = false;
    result.append(item.printed());
  }
  return result;
}

Value find_method(const Text& text, const CallArguments& arguments) {
  const size_t at =
      text.bytes().find(text_argument(arguments, 0, "sub").bytes());
  if (at == std::string::npos)
    return int64_t{-1};
  const auto offsets = code_point_offsets(text.bytes());
  return static_cast<int64_t>(
      std::lower_bound(offsets.begin(), offsets.end(), at) - offsets.begin());
}

Value count_method(const Text& text, const CallArguments& arguments) {
  const std::string& part = text_argument(arguments, 0, "sub").bytes();
  int64_t count = 0;
  for (size_t at = text.bytes().find(part);
       at != std::string::npos && !part.empty();
       at = text.bytes().find(part, at + part.size()))
    ++count;
  return count;
}

Value isdigit_method(const Text& text, const CallArguments&) {
  return !text.empty() &&
         std::all_of(
             text.bytes().begin(), text.bytes().end(), [](unsigned char c) {
               return std::isdigit(c) != 0;
             });
}

const std::map<std::string, Method>& text_methods() {
  static const std::map<std::string, Method> methods = {
      {"strip", strip_method<Sides::kBoth>},
      {"lstrip", strip_method<Sides::kLeft>},
      {"rstrip", strip_method<Sides::kRight>},
      {"split", split_method},
      {"rsplit", rsplit_method},
      {"splitlines", splitlines_method},
      {"startswith", startswith_method},
      {"endswith", endswith_method},
      {"removeprefix", removeprefix_method},
      {"removesuffix", removesuffix_method},
      {"replace", replace_method},
      {"upper", upper_method},
      {"lower", lower_method},
      {"title", title_method},
      {"capitalize", capitalize_method},
      {"join", join_method},
      {"find", find_method},
      {"count", count_method},
      {"isdigit", isdigit_method}};
  return methods;
}

Value call_dict_method(
    const Dict& dict,
    const std::string& name,
    const CallArguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    if (key == nullptr)
      throw Fault("get() needs a key");
    const Value* found =
        key->is_text() ? dict.find(key->text().bytes()) : nullptr;
    const Value* otherwise = arguments.find(1, "default");
    return found ? *found : otherwise ? *otherwise : Value(None{});
  }
  if (name == "copy")
    return std::make_shared<Dict>(dict);
  List result;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items")
      result.emplace_back(List{key, value});
    else if (name == "keys")
      result.emplace_back(key);
    else
      result.push_back(value);
  }
  return result;
}

}  // namespace

bool is_dict_method(const std::string& name) {
  return name == "get" || name == "items" || name == "keys" ||
         name == "values" || name == "copy";
}

bool is_changing_dict_method(const std::string& name) {
  return name == "clear" || name == "pop" || name == "popitem" ||
         name == "setdefault" || name == "update";
}

std::optional<Value> call_method(
    const Value& operand,
    const std::string& name,
    const CallArguments& arguments) {
  if (operand.is_dict() && !operand.dict().is_namespace && is_dict_method(name))
    return call_dict_method(operand.dict(), name, arguments);
  if (!operand.is_text())
    return std::nullopt;
  const auto found = text_methods().find(name);
  if (found == text_methods().end())
    throw Fault(
        fmt::format("the method {}() of a string is not supported", name));
  return found->second(operand.text(), arguments);
}

}  // namespace brigade::jinja
