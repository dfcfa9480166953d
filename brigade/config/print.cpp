// The config as people read it: resolved values, and the list of keys.
#include <fmt/format.h>

#include <algorithm>

#include "brigade/config/keys.h"
#include "brigade/config/train_config.h"
#include "brigade/json/parse.h"

namespace brigade {

namespace {

// What a key is without being given.
std::string default_of(const ConfigKey& key) {
  const TrainConfig defaults;
  return key.default_note.empty() ? json_to_text(key.get(defaults))
                                  : key.default_note;
}

std::string meaning(const ConfigKey& key) {
  return key.ignored_because.empty()
             ? key.help
             : fmt::format("accepted and ignored: {}", key.ignored_because);
}

std::string type_of(const ConfigKey& key) {
  return key.range.empty() ? key.type
                           : fmt::format("{} {}", key.type, key.range);
}

}  // namespace

std::string describe_values(const LoadedConfig& loaded) {
  // A value longer than the column (an inline model) pushes its origin out.
  constexpr size_t kMaxColumn = 40;
  size_t key_width = 0;
  size_t value_width = 0;
  for (const ResolvedValue& resolved : loaded.values) {
    const size_t value_bytes = json_to_text(resolved.value).size();
    key_width = std::max(key_width, resolved.key.size());
    if (value_bytes <= kMaxColumn)
      value_width = std::max(value_width, value_bytes);
  }
  std::string text;
  std::string group;
  for (const ResolvedValue& resolved : loaded.values) {
    const std::string its_group =
        resolved.key.substr(0, resolved.key.find('.'));
    if (!group.empty() && its_group != group)
      text += "\n";
    group = its_group;
    text += fmt::format(
        "{:<{}} = {:<{}}  # {}{}\n",
        resolved.key,
        key_width,
        json_to_text(resolved.value),
        value_width,
        to_string(resolved.origin),
        resolved.note.empty() ? "" : ": " + resolved.note);
  }
  text += fmt::format("\n# config hash {}\n", config_hash(loaded.config));
  return text;
}

std::string describe_keys() {
  std::string text;
  std::string group;
  for (const ConfigKey& key : config_keys()) {
    if (key.group != group)
      text += fmt::format("{}{}\n", group.empty() ? "" : "\n", key.group);
    group = key.group;
    text += fmt::format(
        "  {}.{}  ({}; default {})\n      {}\n",
        key.group,
        key.name,
        type_of(key),
        default_of(key),
        meaning(key));
  }
  return text;
}

std::string describe_keys_as_markdown() {
  // A bar would end the cell.
  const auto cell = [](const std::string& plain) {
    std::string escaped;
    for (char c : plain)
      escaped += c == '|' ? std::string("\\|") : std::string(1, c);
    return escaped;
  };
  std::string text;
  std::string group;
  for (const ConfigKey& key : config_keys()) {
    if (key.group != group)
      text += fmt::format(
          "{}### {}\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
          group.empty() ? "" : "\n",
          key.group);
    group = key.group;
    text += fmt::format(
        "| `{}` | {} | {} | {} |\n",
        key.name,
        cell(type_of(key)),
        key.default_note.empty() ? fmt::format("`{}`", cell(default_of(key)))
                                 : cell(default_of(key)),
        cell(meaning(key)));
  }
  return text;
}

}  // namespace brigade
