#include "brigade/chat/record.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "brigade/json/python_json.h"

namespace brigade {
namespace {

using Json = nlohmann::ordered_json;

// nlohmann::detail::out_of_range: a number beyond the range of double.
constexpr int kBeyondDouble = 406;
constexpr size_t kMostDigitsShown = 40;

// Builds what the parser reads. A whole number beyond 64 bits is kept as its
// digits in a binary value, which no text of JSON holds.
class RecordBuilder final : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(result_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& written) override {
    if (written.find_first_of(".eE") != std::string::npos)
      return add(value);
    return add(
        Json::binary(std::vector<uint8_t>(written.begin(), written.end())));
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // not in text

  bool start_object(size_t) override { return open(Json::object()); }
  bool key(std::string& name) override {
    member_ = &(*open_.back())[name];
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(
      size_t byte,
      const std::string& last_token,
      const nlohmann::json::exception& error) override {
    if (error.id == kBeyondDouble)
      throw DataError(fmt::format(
          "the number {}{} is beyond the range of double precision; write it "
          "as text",
          last_token.substr(0, kMostDigitsShown),
          last_token.size() > kMostDigitsShown ? "..." : ""));
    throw RecordSyntaxError(byte);
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  Json* place(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
      return &result_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *member_ = std::move(value);
    return member_;
  }

  Json result_;
  std::vector<Json*> open_;  // outermost first; only the last one grows
  Json* member_ = nullptr;   // of the last one, whose value comes next
};

Json parse(std::string_view text) {
  RecordBuilder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace

RecordSyntaxError::RecordSyntaxError(size_t at_byte)
    : DataError(fmt::format("no JSON from byte {} on", at_byte)),
      byte(at_byte) {}

Json parse_record(std::string_view text) {
  try {
    return parse(text);
  } catch (const RecordSyntaxError&) {
    const std::string replaced =
        replace_python_values(text, [](std::string_view) { return "null"; });
    if (replaced == text)
      throw;
    try {
      return parse(replaced);
    } catch (const RecordSyntaxError&) {
      // What the text itself lacks is said.
    }
    throw;
  }
}

std::optional<std::string> large_integer(const Json& value) {
  if (value.is_binary())
    return std::string(value.get_binary().begin(), value.get_binary().end());
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
    return fmt::format("{}", value.get<uint64_t>());
  return std::nullopt;
}

}  // namespace brigade
