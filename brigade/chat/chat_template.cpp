#include "brigade/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/chat/evaluate.h"
#include "brigade/chat/parser.h"
#include "brigade/chat/value.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The folder of a tokenizer's files; empty for "bytes".
fs::path folder_of(const std::string& tokenizer) {
  if (tokenizer == "bytes")
    return {};
  return tokenizer_file(tokenizer).parent_path();
}

Json read_json_file(const fs::path& path) {
  Json json = Json::parse(read_text_file(path), nullptr, false);
  if (!json.is_object())
    throw DataError(fmt::format("[chat] {}: not a JSON object", path.string()));
  return json;
}

Json read_special_tokens(const fs::path& folder) {
  Json tokens = Json::object();
  if (folder.empty())
    return tokens;
  const auto in_file = [&](const char* file) {
    return fs::is_regular_file(folder / file) ? read_json_file(folder / file)
                                              : Json(Json::object());
  };
  const Json config = in_file("tokenizer_config.json");
  // As transformers: the map counts only beside a config of before the decoder.
  const Json map = config.contains("added_tokens_decoder")
                       ? Json(Json::object())
                       : in_file("special_tokens_map.json");
  for (const Json* json : {&map, &config}) {
    for (const auto& [key, value] : json->items()) {
      const Json text =
          value.is_object() ? value.value("content", Json()) : value;
      if (!key.ends_with("_token"))
        continue;
      if (text.is_string())
        tokens[key] = text;
      else if (value.is_null())
        tokens.erase(key);
    }
    // A list of them has no names.
    const Json extra = json->value("extra_special_tokens", Json());
    for (const auto& [key, value] : extra.items()) {
      const Json text =
          value.is_object() ? value.value("content", Json()) : value;
      if (extra.is_object() && text.is_string())
        tokens[key] = text;
    }
  }
  return tokens;
}

struct FoundTemplate {
  std::string source;
  std::string file;
};
using FoundTemplates = std::map<std::string, FoundTemplate>;  // by name

constexpr const char* kDefault = "default";

void add_templates(const fs::path& config, FoundTemplates& templates) {
  if (!fs::is_regular_file(config))
    return;
  const Json value = read_json_file(config).value("chat_template", Json());
  if (value.is_string())
    templates[kDefault] = {value.get<std::string>(), config.string()};
  for (const Json& named : value.is_array() ? value : Json::array()) {
    if (named.is_object())
      templates[named.value("name", "")] = {
          named.value("template", ""), config.string()};
  }
}

// As transformers: files of templates replace all that a config holds.
FoundTemplates find_templates(const fs::path& folder) {
  FoundTemplates templates;
  if (folder.empty())
    return templates;
  const auto add_file = [&](const std::string& name, const fs::path& file) {
    templates[name] = {read_text_file(file), file.string()};
  };
  if (fs::is_regular_file(folder / "chat_template.jinja"))
    add_file(kDefault, folder / "chat_template.jinja");
  for (const fs::path& file : more_chat_templates(folder))
    add_file(file.stem().string(), file);
  for (const char* config : {"tokenizer_config.json", "chat_template.json"}) {
    if (templates.empty())
      add_templates(folder / config, templates);
  }
  return templates;
}

// In place of a default that is not there.
FoundTemplate refusal(const FoundTemplates& templates) {
  std::string names;
  for (const auto& [name, found] : templates)
    names += (names.empty() ? "" : ", ") + name;
  return {
      fmt::format(
          "{{{{ raise_exception({}) }}}}",
          Json(fmt::format(
                   "the tokenizer has several chat templates and none named "
                   "default: choose one of {} with --template-name",
                   names))
              .dump()),
      templates.begin()->second.file};
}

bool has_generation_block(const jinja::Statements& statements) {
  return std::any_of(
      statements.begin(), statements.end(), [](const auto& statement) {
        return statement->kind == jinja::StatementKind::kGeneration ||
               has_generation_block(statement->body) ||
               has_generation_block(statement->otherwise);
      });
}

// What a template sees of a message, as in transformers: no members that are
// null, and its thoughts by either name, whatever it calls them itself.
Json shown_members(const Json& message) {
  Json members = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null())
      members[key] = value;
  }
  static constexpr std::array<const char*, 3> kNames = {
      "reasoning_content", "thinking", "reasoning"};
  for (const char* name : kNames) {
    if (!members.contains(name))
      continue;
    Json result = {{"thinking", members[name]}};
    result.update(members);
    result["reasoning_content"] = members[name];
    return result;
  }
  return members;
}

// Everything but the role is the message's own.
jinja::Value message_value(const Json& message, size_t number) {
  auto dict = std::make_shared<jinja::Dict>();
  dict->message = static_cast<int32_t>(number);
  const Json members = shown_members(message);
  for (const auto& [key, value] : members.items()) {
    const bool is_own = key != "role";
    dict->entries.emplace_back(
        key,
        jinja::from_json(
            value, is_own ? std::optional(dict->message) : std::nullopt));
  }
  return dict;
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find(
    const std::string& tokenizer,
    const std::string& name) {
  const fs::path folder = folder_of(tokenizer);
  const FoundTemplates templates = find_templates(folder);
  const auto found = templates.find(name.empty() ? kDefault : name);
  if (templates.empty() || (found == templates.end() && !name.empty()))
    return std::nullopt;
  const Json special_tokens = read_special_tokens(folder);
  const auto make = [&](const FoundTemplate& chosen) {
    return ChatTemplate(chosen.source, chosen.file, special_tokens);
  };
  ChatTemplate result =
      make(found == templates.end() ? refusal(templates) : found->second);
  const auto with_tools = templates.find("tool_use");
  if (name.empty() && with_tools != templates.end()) {
    try {
      result.with_tools_ =
          std::make_shared<const ChatTemplate>(make(with_tools->second));
    } catch (const DataError& error) {
      result.problem_with_tools_ = error.what();
    }
  }
  return result;
}

ChatTemplate ChatTemplate::load(
    const std::string& tokenizer,
    const std::string& name) {
  auto found = find(tokenizer, name);
  if (!found) {
    throw DataError(fmt::format(
        "[chat] the tokenizer '{}' has no chat template{}: put a "
        "chat_template.jinja beside its tokenizer.json, or give one with "
        "--template FILE",
        tokenizer,
        name.empty() ? "" : fmt::format(" named '{}'", name)));
  }
  return std::move(*found);
}

ChatTemplate ChatTemplate::load_file(
    const fs::path& file,
    const std::string& tokenizer) {
  return {
      read_text_file(file),
      file.string(),
      read_special_tokens(folder_of(tokenizer))};
}

ChatTemplate::ChatTemplate(
    std::string source,
    std::string name,
    Json special_tokens)
    : source_(std::move(source)),
      name_(std::move(name)),
      special_tokens_(std::move(special_tokens)),
      statements_(std::make_shared<const jinja::Statements>(
          jinja::parse(source_, name_))) {}

const ChatTemplate& ChatTemplate::for_tools(const Json& tools) const {
  if (!tools.is_null() && !problem_with_tools_.empty())
    throw DataError(problem_with_tools_);
  return with_tools_ && !tools.is_null() ? *with_tools_ : *this;
}

bool ChatTemplate::has_generation() const {
  return has_generation_block(*statements_);
}

RenderedChat ChatTemplate::render(
    const Json& messages,
    const ChatOptions& options) const {
  if (const ChatTemplate& other = for_tools(options.tools); &other != this)
    return other.render(messages, options);
  jinja::Dict variables;
  for (const auto& [key, value] : special_tokens_.items())
    variables[key] = jinja::from_json(value);
  jinja::List list;
  for (const Json& message : messages) {
    if (!message.is_object())
      throw DataError("[chat] a message is not a JSON object");
    list.push_back(message_value(message, list.size()));
  }
  variables["messages"] = std::move(list);
  variables["tools"] = jinja::from_json(options.tools);
  variables["documents"] = jinja::None{};
  variables["add_generation_prompt"] = options.add_generation_prompt;
  for (const auto& [key, value] : options.variables.items())
    variables[key] = jinja::from_json(value);
  const jinja::Text text = jinja::evaluate(
      *statements_, variables, {.name = name_, .now = options.now});
  return {text.bytes(), text.marks()};
}

}  // namespace brigade
