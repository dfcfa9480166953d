// Conversion of one config value between JSON and its C++ type: private to
// train_config.
// read_value() stores a value, or says what was expected instead.
#pragma once

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

struct ValueRule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_excluded = false;
  bool high_is_excluded = false;
  std::vector<std::string> choices;  // of text
  // The text that an optional value is absent by, where null is not.
  std::optional<std::string> absent = {};

  // ">= 1", "> 0 and < 1", "one of: a, b", "".
  std::string describe() const;
};

using Expectation = std::optional<std::string>;

Expectation read_value(const nlohmann::json&, const ValueRule&, bool& out);
Expectation read_value(const nlohmann::json&, const ValueRule&, int64_t& out);
Expectation read_value(const nlohmann::json&, const ValueRule&, int& out);
Expectation read_value(const nlohmann::json&, const ValueRule&, double& out);
// null leaves text as it is: absent.
Expectation
read_value(const nlohmann::json&, const ValueRule&, std::string& out);
// An object or null.
Expectation
read_value(const nlohmann::json&, const ValueRule&, nlohmann::json& out);
Expectation
read_value(const nlohmann::json&, const ValueRule&, std::vector<int>& out);
Expectation
read_value(const nlohmann::json&, const ValueRule&, std::array<double, 3>& out);
// One text, or a list of them that is not empty.
Expectation read_value(
    const nlohmann::json&,
    const ValueRule&,
    std::vector<std::string>& out);
Expectation read_value(
    const nlohmann::json&,
    const ValueRule&,
    std::vector<MixturePart>& out);
Expectation read_value(const nlohmann::json&, const ValueRule&, LrTable& out);

// rule.choices must be choice_texts<Enum>().
template <NamedChoice Enum>
Expectation
read_value(const nlohmann::json& value, const ValueRule& rule, Enum& out) {
  std::string text = to_string(out);
  auto expected = read_value(value, rule, text);
  out = find_choice<Enum>(text).value_or(out);
  return expected;
}

template <NamedChoice Enum>
Expectation read_value(
    const nlohmann::json& value,
    const ValueRule& rule,
    std::vector<Enum>& out) {
  std::vector<std::string> texts;
  if (auto expected = read_value(value, rule, texts))
    return expected;
  out.clear();
  for (const std::string& text : texts)
    out.push_back(find_choice<Enum>(text).value_or(Enum{}));
  return std::nullopt;
}

template <class T>
Expectation read_value(
    const nlohmann::json& value,
    const ValueRule& rule,
    std::optional<T>& out) {
  if (rule.absent && value.is_null())
    return std::nullopt;
  if (value ==
      (rule.absent ? nlohmann::json(*rule.absent) : nlohmann::json())) {
    out.reset();
    return std::nullopt;
  }
  T inner{};
  auto expected = read_value(value, rule, inner);
  if (expected)
    return *expected + (rule.absent ? "" : ", or null");
  out = std::move(inner);
  return std::nullopt;
}

template <NamedChoice Enum>
nlohmann::json write_value(const Enum& choice) {
  return to_string(choice);
}
// A single one is written without its list.
template <NamedChoice Enum>
nlohmann::json write_value(const std::vector<Enum>& choices) {
  if (choices.size() == 1)
    return to_string(choices[0]);
  nlohmann::json list = nlohmann::json::array();
  for (const Enum choice : choices)
    list.push_back(to_string(choice));
  return list;
}
nlohmann::json write_value(const std::vector<MixturePart>& parts);
nlohmann::json write_value(const LrTable& table);
template <class T>
nlohmann::json write_value(const T& value) {
  return value;
}
template <class T>
nlohmann::json write_value(const std::optional<T>& value) {
  return value ? write_value(*value) : nlohmann::json();
}

// The choices of a key's type, also of a list's elements; empty: no enum.
template <class T>
struct ChoicesOf {
  static std::vector<std::string> texts() {
    if constexpr (NamedChoice<T>)
      return choice_texts<T>();
    return {};
  }
};
template <class T>
struct ChoicesOf<std::optional<T>> : ChoicesOf<T> {};
template <class T>
struct ChoicesOf<std::vector<T>> : ChoicesOf<T> {};

// What the docs call a type; empty: no type of a key.
template <class T>
inline constexpr std::string_view kTypeName{};
template <class T>
inline constexpr std::string_view kTypeName<std::optional<T>> = kTypeName<T>;
template <>
inline constexpr std::string_view kTypeName<bool> = "true or false";
template <>
inline constexpr std::string_view kTypeName<int> = "integer";
template <>
inline constexpr std::string_view kTypeName<int64_t> = "integer";
template <>
inline constexpr std::string_view kTypeName<double> = "number";
template <>
inline constexpr std::string_view kTypeName<std::string> = "text";
template <>
inline constexpr std::string_view kTypeName<std::vector<std::string>> =
    "text, or list of text";
template <NamedChoice Enum>
inline constexpr std::string_view kTypeName<Enum> = "text";
template <>
inline constexpr std::string_view kTypeName<nlohmann::json> = "object";
template <>
inline constexpr std::string_view kTypeName<std::vector<int>> =
    "list of integers";
template <>
inline constexpr std::string_view kTypeName<std::array<double, 3>> =
    "list of three numbers";
template <NamedChoice Enum>
inline constexpr std::string_view kTypeName<std::vector<Enum>> =
    "text, or list of text";
template <>
inline constexpr std::string_view kTypeName<LrTable> =
    "list of {step or tokens, factor}";
template <>
inline constexpr std::string_view kTypeName<std::vector<MixturePart>> =
    "list of {name, weight}";

}  // namespace brigade
