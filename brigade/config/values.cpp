#include "brigade/config/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "brigade/json/parse.h"

namespace brigade {

namespace {

using nlohmann::json;

constexpr double kBeyondInt64 = 9223372036854775808.0;  // 2^63

std::string with_range(const char* type, const ValueRule& rule) {
  const std::string range = rule.describe();
  return range.empty() ? fmt::format("expected {}", type)
                       : fmt::format("expected {} {}", type, range);
}

bool is_in_range(double value, const ValueRule& rule) {
  const bool is_above =
      rule.low_is_excluded ? value > rule.low : value >= rule.low;
  const bool is_below =
      rule.high_is_excluded ? value < rule.high : value <= rule.high;
  return is_above && is_below;
}

// 200, and also 2e2 and 1e18, which JSON does not call integers.
std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return std::nullopt;
  if (value.is_number_integer())
    return value.get<int64_t>();
  if (!value.is_number_float())
    return std::nullopt;
  const auto number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) >= kBeyondInt64)
    return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

std::string ValueRule::describe() const {
  if (!choices.empty())
    return fmt::format("one of: {}", fmt::join(choices, ", "));
  const std::string above =
      std::isfinite(low)
          ? fmt::format("{} {}", low_is_excluded ? ">" : ">=", low)
          : "";
  const std::string below =
      std::isfinite(high)
          ? fmt::format("{} {}", high_is_excluded ? "<" : "<=", high)
          : "";
  const char* link = above.empty() || below.empty() ? "" : " and ";
  return above + link + below;
}

Expectation read_value(const json& value, const ValueRule&, bool& out) {
  if (!value.is_boolean())
    return "expected true or false";
  out = value.get<bool>();
  return std::nullopt;
}

Expectation read_value(const json& value, const ValueRule& rule, int64_t& out) {
  const auto number = as_integer(value);
  if (!number && value.is_number() && value.get<double>() >= kBeyondInt64)
    return with_range("an integer", rule) +
           fmt::format(", at most {}", std::numeric_limits<int64_t>::max());
  if (!number || !is_in_range(static_cast<double>(*number), rule))
    return with_range("an integer", rule);
  out = *number;
  return std::nullopt;
}

Expectation read_value(const json& value, const ValueRule& rule, int& out) {
  ValueRule narrow = rule;
  narrow.high = std::min<double>(rule.high, INT32_MAX);
  int64_t number = 0;
  if (read_value(value, narrow, number)) {
    // The bound of the type is worth a word only where it is what was crossed.
    const auto wide = as_integer(value);
    const bool is_huge = wide && *wide > INT32_MAX;
    return with_range("an integer", is_huge ? narrow : rule);
  }
  out = static_cast<int>(number);
  return std::nullopt;
}

Expectation read_value(const json& value, const ValueRule& rule, double& out) {
  if (!value.is_number() || !is_in_range(value.get<double>(), rule))
    return with_range("a number", rule);
  out = value.get<double>();
  return std::nullopt;
}

Expectation
read_value(const json& value, const ValueRule& rule, std::string& out) {
  if (value.is_null())
    return std::nullopt;
  if (!value.is_string())
    return with_range("text", rule);
  const auto& text = value.get_ref<const std::string&>();
  const bool is_choice =
      rule.choices.empty() ||
      std::find(rule.choices.begin(), rule.choices.end(), text) !=
          rule.choices.end();
  if (!is_choice)
    return with_range("text,", rule);
  out = text;
  return std::nullopt;
}

Expectation read_value(const json& value, const ValueRule&, json& out) {
  if (!value.is_object() && !value.is_null())
    return "expected an object, or null";
  out = value;
  return std::nullopt;
}

Expectation
read_value(const json& value, const ValueRule& rule, std::vector<int>& out) {
  const std::string expected = with_range("a list of integers", rule);
  if (!value.is_array())
    return expected;
  std::vector<int> numbers;
  for (const json& element : value) {
    int number = 0;
    if (read_value(element, rule, number))
      return expected + fmt::format("; {} is not", show_json(element));
    numbers.push_back(number);
  }
  out = std::move(numbers);
  return std::nullopt;
}

Expectation read_value(
    const json& value,
    const ValueRule& rule,
    std::array<double, 3>& out) {
  const std::string expected = with_range("a list of three numbers", rule);
  std::array<double, 3> numbers{};
  if (!value.is_array() || value.size() != numbers.size())
    return expected;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (read_value(value[i], rule, numbers[i]))
      return expected + fmt::format("; {} is not", show_json(value[i]));
  }
  out = numbers;
  return std::nullopt;
}

Expectation read_value(
    const json& value,
    const ValueRule& rule,
    std::vector<std::string>& out) {
  const std::string expected =
      rule.describe().empty()
          ? "expected text or a list of one or more"
          : with_range("text or a list of one or more,", rule);
  std::vector<std::string> texts;
  for (const json& element : value.is_array() ? value : json::array({value})) {
    std::string text;
    if (element.is_null() || read_value(element, rule, text))
      return expected;
    texts.push_back(std::move(text));
  }
  if (texts.empty())
    return expected;
  out = std::move(texts);
  return std::nullopt;
}

namespace {

// The unit of these points, which are not empty.
PointUnit unit_of(const json& points) {
  return points[0].is_object() &&
                 points[0].contains(to_string(PointUnit::kSteps))
             ? PointUnit::kSteps
             : PointUnit::kTokens;
}

// [{"step": 0, "weight": 1}, {"step": 1000, "weight": 0}], or of "tokens".
bool read_weights(const json& value, MixturePart& part) {
  if (!value.is_array() || value.empty())
    return false;
  part.unit = unit_of(value);
  for (const json& element : value) {
    MixtureWeight point;
    const char* const key = to_string(part.unit);
    const bool is_point =
        element.is_object() && element.size() == 2 && element.contains(key) &&
        element.contains("weight") &&
        !read_value(element[key], {.low = 0, .high = 1e12}, point.after) &&
        !read_value(element["weight"], {.low = 0}, point.weight) &&
        (part.weights.empty() || part.weights.back().after < point.after);
    if (!is_point)
      return false;
    part.weights.push_back(point);
  }
  return true;
}

}  // namespace

Expectation
read_value(const json& value, const ValueRule&, std::vector<MixturePart>& out) {
  const std::string expected =
      R"(expected a list of {"name": PATH, "weight": a number > 0, or a list )"
      R"(of {"step" or "tokens": ascending, "weight": a number >= 0}})";
  if (!value.is_array())
    return expected;
  std::vector<MixturePart> parts;
  for (const json& element : value) {
    MixturePart part;
    const bool is_part =
        element.is_object() && element.contains("name") &&
        element["name"].is_string() &&
        element.size() == (element.contains("weight") ? 2U : 1U);
    const ValueRule positive{.low = 0, .low_is_excluded = true};
    const bool has_weight =
        is_part && (!element.contains("weight") ||
                    !read_value(element["weight"], positive, part.weight) ||
                    read_weights(element["weight"], part));
    if (!has_weight)
      return expected + fmt::format("; {} is none", show_json(element));
    part.name = element["name"].get<std::string>();
    parts.push_back(std::move(part));
  }
  out = std::move(parts);
  return std::nullopt;
}

json write_value(const std::vector<MixturePart>& parts) {
  json list = json::array();
  for (const MixturePart& part : parts) {
    json weight = part.weight;
    if (!part.weights.empty())
      weight = json::array();
    for (const MixtureWeight& point : part.weights)
      weight.push_back(
          {{to_string(part.unit), point.after}, {"weight", point.weight}});
    list.push_back({{"name", part.name}, {"weight", weight}});
  }
  return list;
}

Expectation read_value(const json& value, const ValueRule&, LrTable& out) {
  const std::string expected =
      R"(expected a list of {"step" or "tokens": whole numbers that ascend, )"
      R"("factor": a number >= 0}, all by "step" or all by "tokens")";
  if (!value.is_array() || value.empty())
    return expected;
  LrTable table;
  table.unit = unit_of(value);
  for (const json& element : value) {
    LrPoint point;
    const char* const key = to_string(table.unit);
    const bool is_point =
        element.is_object() && element.size() == 2 && element.contains(key) &&
        element.contains("factor") &&
        !read_value(element[key], {.low = 0, .high = 1e15}, point.after) &&
        !read_value(element["factor"], {.low = 0}, point.factor);
    if (!is_point)
      return expected + fmt::format("; {} is none", show_json(element));
    if (!table.points.empty() && table.points.back().after >= point.after)
      return expected + fmt::format(
                            "; {} does not come after {} {}",
                            show_json(element),
                            key,
                            table.points.back().after);
    table.points.push_back(point);
  }
  out = std::move(table);
  return std::nullopt;
}

json write_value(const LrTable& table) {
  json list = json::array();
  for (const LrPoint& point : table.points)
    list.push_back(
        {{to_string(table.unit), point.after}, {"factor", point.factor}});
  return list;
}

}  // namespace brigade
