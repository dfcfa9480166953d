// One config value between JSON and its C++ type: private to train_config.
// read_value() stores a value, or says what was expected instead.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

struct ValueRule {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_excluded = false;
  bool high_is_excluded = false;
  std::vector<std::string> choices;  // of text

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
Expectation
read_value(const nlohmann::json&, const ValueRule&, ModelDtype& out);
// An object or null.
Expectation
read_value(const nlohmann::json&, const ValueRule&, nlohmann::json& out);
Expectation
read_value(const nlohmann::json&, const ValueRule&, std::vector<int>& out);
// One text, or a list of them.
Expectation read_value(
    const nlohmann::json&,
    const ValueRule&,
    std::vector<std::string>& out);
Expectation read_value(
    const nlohmann::json&,
    const ValueRule&,
    std::vector<MixturePart>& out);

template <class T>
Expectation read_value(
    const nlohmann::json& value,
    const ValueRule& rule,
    std::optional<T>& out) {
  if (value.is_null()) {
    out.reset();
    return std::nullopt;
  }
  T inner{};
  auto expected = read_value(value, rule, inner);
  if (expected)
    return *expected + ", or null";
  out = std::move(inner);
  return std::nullopt;
}

inline nlohmann::json write_value(ModelDtype dtype) {
  return to_string(dtype);
}
nlohmann::json write_value(const std::vector<std::string>& values);
nlohmann::json write_value(const std::vector<MixturePart>& parts);
template <class T>
nlohmann::json write_value(const T& value) {
  return value;
}
template <class T>
nlohmann::json write_value(const std::optional<T>& value) {
  return value ? write_value(*value) : nlohmann::json();
}

// What the docs call a type.
template <class T>
struct TypeName;
template <class T>
struct TypeName<std::optional<T>> : TypeName<T> {};
template <>
struct TypeName<bool> {
  static constexpr const char* kName = "true or false";
};
template <>
struct TypeName<int> {
  static constexpr const char* kName = "integer";
};
template <>
struct TypeName<int64_t> {
  static constexpr const char* kName = "integer";
};
template <>
struct TypeName<double> {
  static constexpr const char* kName = "number";
};
template <>
struct TypeName<std::string> {
  static constexpr const char* kName = "text";
};
template <>
struct TypeName<ModelDtype> {
  static constexpr const char* kName = "text";
};
template <>
struct TypeName<nlohmann::json> {
  static constexpr const char* kName = "object";
};
template <>
struct TypeName<std::vector<int>> {
  static constexpr const char* kName = "list of integers";
};
template <>
struct TypeName<std::vector<std::string>> {
  static constexpr const char* kName = "text, or list of text";
};
template <>
struct TypeName<std::vector<MixturePart>> {
  static constexpr const char* kName = "list of {name, weight}";
};

}  // namespace brigade
