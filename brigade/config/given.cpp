#include "brigade/config/given.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/utf8.h"
#include "brigade/json/fault_text.h"
#include "brigade/json/nearest.h"
#include "brigade/json/parse.h"
#include "brigade/json/visit.h"

namespace brigade {

namespace {

using nlohmann::json;
using Problems = std::vector<std::string>;

std::string unknown_key(std::string_view group, std::string_view name) {
  const ConfigKey& nearest = nearest_config_key(group, name);
  return fmt::format(
      "unknown key; the nearest valid one is {} ({})",
      nearest.pointer(),
      nearest.help);
}

std::string unknown_group(const std::string& group) {
  // A key without its group is as likely as a misspelt group.
  std::vector<std::string> names;
  std::vector<std::string> answers;
  for (const ConfigKey& key : config_keys()) {
    if (std::find(names.begin(), names.end(), key.group) == names.end()) {
      names.push_back(key.group);
      answers.push_back("/" + key.group);
    }
  }
  for (const ConfigKey& key : config_keys()) {
    names.push_back(key.name);
    answers.push_back(key.pointer());
  }
  return fmt::format(
      "unknown group; the nearest valid name is {}",
      answers[nearest_name(group, names)]);
}

// "a/b.c" -> "/a~1b/c".
std::string pointer_of(std::string_view dotted) {
  std::string pointer;
  while (true) {
    const size_t dot = dotted.find('.');
    pointer = child_pointer(pointer, dotted.substr(0, dot));
    if (dot == std::string_view::npos)
      return pointer;
    dotted.remove_prefix(dot + 1);
  }
}

// "64" -> 64, "abc" -> "abc": what the text means where any JSON may stand.
json json_or_text(const std::string& text) {
  return parse_json_or_nothing(text).value_or(text);
}

// Text is taken as it stands, so that run_name=2024 is a name; quotes may be
// written, and null means absent.
json value_for(const ConfigKey& key, const std::string& text) {
  const json value = json_or_text(text);
  const bool is_json = !key.is_text || value.is_string() || value.is_null();
  return is_json ? value : json(text);
}

// model.config.hidden_size=64: into the inline config of the file.
void override_inside(
    const ConfigKey& key,
    const std::string& path,
    const std::string& text,
    ValueOrigin origin,
    GivenValues& given,
    Problems& problems) {
  const std::string problem = introduce_problem(
      key.pointer() + pointer_of(path), json_or_text(text), to_string(origin));
  const auto found = given.find(&key);
  if (found == given.end() || !found->second.value.is_object()) {
    problems.push_back(
        problem + key.pointer() +
        " is not given, so nothing in it can be changed");
    return;
  }
  json& model = found->second.value;
  // A Hugging Face config may hold keys that mean nothing, so a misspelt one
  // would go unnoticed.
  std::vector<std::string> names;
  const auto add_names = [&](const json& known) {
    for (const auto& [name, value] : known.items())
      names.push_back(name);
  };
  add_names(model);
  for (const ArchitectureName& known : kArchitectures) {
    DecoderConfig config;
    config.architecture = known.architecture;
    // Written only where they are set.
    config.rope_local_base_freq.emplace(1e4);
    config.experts.emplace();
    add_names(to_hugging_face_json(config, ""));
  }
  const std::string name = path.substr(0, path.find('.'));
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    problems.push_back(
        problem + fmt::format(
                      "unknown key; the nearest valid one is {}/{}",
                      key.pointer(),
                      names[nearest_name(name, names)]));
    return;
  }
  try {
    model[json::json_pointer(pointer_of(path))] = json_or_text(text);
  } catch (const json::exception&) {
    problems.push_back(problem + "there is no object at this place");
    return;
  }
  found->second.origin = origin;
}

}  // namespace

std::optional<json> read_config_json(
    const std::string& text,
    const std::string& source,
    Problems& problems) {
  std::vector<JsonFault> faults;
  auto value = parse_json(text, {}, faults);
  for (const JsonFault& fault : faults) {
    const JsonPlace place = place_of(text, fault.offset);
    problems.push_back(fmt::format(
        "[config] {}:{}:{}: {}",
        source,
        place.line,
        place.column,
        describe(fault)));
  }
  return value;
}

std::string text_override(const std::string& key, const std::string& text) {
  const auto value = parse_json_or_nothing(text);
  const bool means_other = value && (value->is_string() || value->is_null());
  return key + "=" + (means_other ? json(text).dump() : text);
}

// A config goes into files that are JSON.
std::optional<std::string> find_utf8_problem(
    const std::string& text,
    const std::string& place) {
  if (valid_utf8_prefix(text) == text.size())
    return std::nullopt;
  return fmt::format(
      "[config] {} ({}): the text is not valid UTF-8; use other names for "
      "files and folders",
      show_json(text),
      place);
}

std::string shown_value(const GivenValue& given) {
  return given.value.is_number() && !given.text.empty()
             ? given.text
             : show_json(given.value);
}

std::string introduce_problem(
    const std::string& pointer,
    const json& value,
    const std::string& place) {
  return fmt::format(
      "[config] {} = {} ({}): ", pointer, show_json(value), place);
}

void collect_file(
    const json& file,
    const std::string& source,
    GivenValues& given,
    Problems& problems) {
  if (!file.is_object()) {
    problems.push_back(
        introduce_problem("/", file, source) +
        "expected an object with the groups distributed, model, ...");
    return;
  }
  for (const auto& [group, members] : file.items()) {
    const std::string pointer = "/" + group;
    if (!is_config_group(group)) {
      problems.push_back(
          introduce_problem(pointer, members, source) + unknown_group(group));
      continue;
    }
    if (!members.is_object()) {
      problems.push_back(
          introduce_problem(pointer, members, source) + "expected an object");
      continue;
    }
    for (const auto& [name, value] : members.items()) {
      if (const ConfigKey* key = find_config_key(group, name))
        given[key] = {value, ValueOrigin::kFile, source};
      else
        problems.push_back(
            introduce_problem(pointer + "/" + name, value, source) +
            unknown_key(group, name));
    }
  }
}

void collect_override(
    const ConfigOverride& override,
    GivenValues& given,
    Problems& problems) {
  const std::string place = to_string(override.origin);
  const size_t equals = override.text.find('=');
  const std::string dotted = override.text.substr(0, equals);
  const size_t dot = dotted.find('.');
  const bool has_key = dot == std::string::npos
                           ? !dotted.empty() && !is_config_group(dotted)
                           : dot > 0 && dot + 1 < dotted.size();
  if (equals == std::string::npos || !has_key) {
    problems.push_back(fmt::format(
        "[config] '{}' ({}): expected group.key=value, such as "
        "distributed.dp_size=2",
        override.text,
        place));
    return;
  }
  if (const auto problem = find_utf8_problem(override.text, place)) {
    problems.push_back(*problem);
    return;
  }
  const std::string text = override.text.substr(equals + 1);
  const std::string group = dotted.substr(0, dot);
  const std::string name =
      dot == std::string::npos ? "" : dotted.substr(dot + 1);
  const json shown = json_or_text(text);
  if (!is_config_group(group)) {
    const std::string pointer = pointer_of(dotted);
    // x.tp_size=2 is answered by its key, tpsize=2 and grup.x=2 by the group.
    const ConfigKey* named = nullptr;
    for (const ConfigKey& key : config_keys()) {
      if (!name.empty() && key.name == name)
        named = &key;
    }
    problems.push_back(
        introduce_problem(pointer, shown, place) +
        (named != nullptr ? unknown_key(group, name) : unknown_group(group)));
    return;
  }
  if (const ConfigKey* key = find_config_key(group, name)) {
    given[key] = {value_for(*key, text), override.origin, place, text};
    return;
  }
  const std::string inside = "config.";
  if (group == "model" && name.starts_with(inside)) {
    override_inside(
        *find_config_key("model", "config"),
        name.substr(inside.size()),
        text,
        override.origin,
        given,
        problems);
    return;
  }
  problems.push_back(
      introduce_problem(pointer_of(dotted), shown, place) +
      unknown_key(group, name));
}

}  // namespace brigade
