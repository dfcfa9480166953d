#include "brigade/json/parse.h"

#include <utility>

#include "brigade/base/utf8.h"

namespace brigade {
namespace {

using nlohmann::json;

// Builds the value of a document.
class Builder final : public JsonVisitor {
 public:
  Builder(const JsonLimits& limits, std::vector<JsonFault>& faults)
      : limits_(limits), faults_(faults) {}

  json take() { return std::move(root_); }

  bool scalar(json&& value, const JsonPosition&) override {
    add(std::move(value));
    return true;
  }
  bool begin_object(const JsonPosition&) override {
    open_.push_back(add(json::object()));
    return true;
  }
  bool begin_array(const JsonPosition&) override {
    open_.push_back(add(json::array()));
    return true;
  }
  bool key(std::string& name, const JsonPosition& at) override {
    const auto [member, is_new] =
        open_.back()->get_ref<json::object_t&>().emplace(
            std::move(name), nullptr);
    member_ = &member->second;
    if (!is_new && !limits_.last_key_counts)
      faults_.push_back(
          {"this key appears twice in its object; remove one",
           at.offset(),
           at.pointer()});
    return true;
  }
  bool end_object(const JsonPosition&) override { return close(); }
  bool end_array(const JsonPosition&) override { return close(); }

 private:
  // Stays where it is while the container is open: only the innermost grows.
  json* add(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  std::vector<JsonFault>& faults_;
  json root_;
  std::vector<json*> open_;
  json* member_ = nullptr;  // the value of the last key
};

}  // namespace

std::optional<json> parse_json(
    std::string_view text,
    const JsonLimits& limits,
    std::vector<JsonFault>& faults) {
  Builder builder(limits, faults);
  if (auto fault = visit_json(text, limits, builder)) {
    faults.push_back(std::move(*fault));
    return std::nullopt;
  }
  return builder.take();
}

std::optional<json> parse_json_or_nothing(std::string_view text) {
  std::vector<JsonFault> faults;
  auto value = parse_json(text, {}, faults);
  return faults.empty() ? std::move(value) : std::nullopt;
}

const char* kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string show_json(const json& value) {
  constexpr size_t kMaxShownBytes = 80;
  std::string text = json_to_text(value);
  if (text.size() > kMaxShownBytes) {
    size_t end = kMaxShownBytes - 3;
    // Not in the middle of a UTF-8 character.
    while (end > 0 && is_utf8_continuation(text[end]))
      --end;
    text = text.substr(0, end) + "...";
  }
  return text;
}

}  // namespace brigade
