#include "brigade/model_spec/decoder_config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace brigade {

using nlohmann::json;

const json* DecoderConfigReader::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool DecoderConfigReader::holds_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

std::vector<std::string> DecoderConfigReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items())
    keys.push_back(key);
  return keys;
}

std::optional<int64_t>
DecoderConfigReader::integer(const char* key, int64_t low, int64_t high) const {
  const json* value = find(key);
  if (value == nullptr)
    return std::nullopt;
  const auto number = integer_in(*value, low, high);
  if (!number) {
    problem(
        key,
        fmt::format(
            "{} is not an integer from {} to {}", show(*value), low, high));
  }
  return number;
}

std::optional<double>
DecoderConfigReader::number(const char* key, Bound bound, double low) const {
  const json* value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    const bool inside = bound == Bound::kAbove ? number > low : number >= low;
    if (inside && std::isfinite(number))
      return number;
  }
  problem(
      key,
      fmt::format(
          "{} is not a number {} {}",
          show(*value),
          bound == Bound::kAbove ? "above" : "of at least",
          low));
  return std::nullopt;
}

std::optional<bool> DecoderConfigReader::boolean(const char* key) const {
  const json* value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_boolean())
    return value->get<bool>();
  problem(key, fmt::format("{} is neither true nor false", show(*value)));
  return std::nullopt;
}

std::optional<std::string> DecoderConfigReader::text(const char* key) const {
  const json* value = find(key);
  if (value == nullptr)
    return std::nullopt;
  if (value->is_string())
    return value->get<std::string>();
  problem(key, fmt::format("{} is not a string", show(*value)));
  return std::nullopt;
}

const json* DecoderConfigReader::object(const char* key) const {
  const json* value = find(key);
  if (value != nullptr && !value->is_object()) {
    problem(key, fmt::format("{} is not an object", show(*value)));
    return nullptr;
  }
  return value;
}

int64_t DecoderConfigReader::required_integer(
    const char* key,
    int64_t low,
    int64_t high) const {
  if (find(key) == nullptr) {
    problem(key, "is missing; the shape of the model needs it");
    return low;
  }
  return integer(key, low, high).value_or(low);
}

DecoderConfigReader DecoderConfigReader::inside(
    const char* key,
    const json& nested) const {
  return {nested, fmt::format("{}/{}", pointer_, key), problems_};
}

void DecoderConfigReader::problem(const char* key, const std::string& text)
    const {
  problems_.push_back(fmt::format("{}/{}: {}", pointer_, key, text));
}

bool DecoderConfigReader::is_sound(
    std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    const std::string begin = fmt::format("{}/{}: ", pointer_, key);
    for (const std::string& problem : problems_) {
      if (problem.starts_with(begin))
        return false;
    }
  }
  return true;
}

std::optional<int64_t>
DecoderConfigReader::integer_in(const json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer())
    return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > std::numeric_limits<int64_t>::max())
    return std::nullopt;
  const int64_t number = value.get<int64_t>();
  if (number < low || number > high)
    return std::nullopt;
  return number;
}

std::string DecoderConfigReader::show(const json& value) {
  constexpr size_t kMaxShown = 60;
  // A hostile file may nest as deep as the stack: no dump() of such a value.
  if (value.is_structured()) {
    for (const json& item : value) {
      if (item.is_structured())
        return value.is_array() ? "[...]" : "{...}";
    }
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown)
    text = text.substr(0, kMaxShown) + "...";
  return text;
}

}  // namespace brigade
