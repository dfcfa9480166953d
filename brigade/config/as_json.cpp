#include "brigade/config/as_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace brigade {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

struct TooDeep {};

// Follows the parser through the document and knows where it is.
class DuplicateFinder {
 public:
  DuplicateFinder(const std::string& source, std::vector<std::string>& problems)
      : source_(source), problems_(problems) {}

  void on_event(json::parse_event_t event, const json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (levels_.size() == kMaxDepth)
          throw TooDeep();
        levels_.push_back(
            {.is_array = event == json::parse_event_t::array_start});
        break;
      case json::parse_event_t::key:
        on_key(value.get<std::string>());
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        levels_.pop_back();
        next_element();
        break;
      case json::parse_event_t::value:
        next_element();
        break;
    }
  }

 private:
  struct Level {
    bool is_array = false;
    size_t index = 0;  // of an array's element
    std::string key;   // of an object's member
    std::set<std::string> keys;
  };

  void next_element() {
    if (!levels_.empty() && levels_.back().is_array)
      ++levels_.back().index;
  }

  void on_key(const std::string& key) {
    levels_.back().key = key;
    if (levels_.back().keys.insert(key).second)
      return;
    std::string pointer;
    for (const Level& level : levels_)
      pointer +=
          "/" + (level.is_array ? std::to_string(level.index) : level.key);
    problems_.push_back(fmt::format(
        "[config] {} ({}): this key stands twice in its object; remove one",
        pointer,
        source_));
  }

  const std::string& source_;
  std::vector<std::string>& problems_;
  std::vector<Level> levels_;
};

// nlohmann's text behind its own tag and position.
std::string reason_of(const std::string& message) {
  constexpr std::string_view kIntroduction = "syntax error while parsing ";
  const size_t begin = message.find(kIntroduction);
  if (begin != std::string::npos)
    return "syntax error in " + message.substr(begin + kIntroduction.size());
  const size_t tag = message.find("] ");
  return tag == std::string::npos ? message : message.substr(tag + 2);
}

}  // namespace

std::optional<json> parse_config_json(
    const std::string& text,
    const std::string& source_name,
    std::vector<std::string>& problems) {
  DuplicateFinder duplicates(source_name, problems);
  const auto follow = [&](int, json::parse_event_t event, json& value) {
    duplicates.on_event(event, value);
    return true;
  };
  try {
    return json::parse(text, follow);
  } catch (const json::parse_error& error) {
    // byte counts from 1 and names the last byte read.
    const size_t position =
        std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
    const auto begin = text.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(position);
    const size_t line_start =
        position == 0 ? std::string::npos : text.rfind('\n', position - 1);
    problems.push_back(fmt::format(
        "[config] {}:{}:{}: {}",
        source_name,
        1 + std::count(begin, end, '\n'),
        line_start == std::string::npos ? position + 1 : position - line_start,
        reason_of(error.what())));
  } catch (const TooDeep&) {
    problems.push_back(fmt::format(
        "[config] {}: nested deeper than {} levels", source_name, kMaxDepth));
  } catch (const json::exception& error) {
    problems.push_back(
        fmt::format("[config] {}: {}", source_name, reason_of(error.what())));
  }
  return std::nullopt;
}

std::optional<json> parse_json_value(const std::string& text) {
  std::vector<std::string> problems;
  auto value = parse_config_json(text, "", problems);
  return problems.empty() ? value : std::nullopt;
}

std::string show_json(const json& value) {
  constexpr size_t kMaxShownBytes = 80;
  std::string text = value.dump(
      -1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) {
    size_t end = kMaxShownBytes - 3;
    // Not in the middle of a UTF-8 character.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
      --end;
    text = text.substr(0, end) + "...";
  }
  return text;
}

}  // namespace brigade
