#include "brigade/gguf/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// tokenizer_config.json; an empty object where there is none.
json config_in(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  return fs::is_regular_file(file) ? json::parse(read_text_file(file))
                                   : json::object();
}

// By name; the usual one is "default".
std::map<std::string, std::string> templates_in(const fs::path& folder) {
  std::map<std::string, std::string> templates;
  for (const fs::path& file : more_chat_templates(folder))
    templates[file.stem().string()] = read_text_file(file);
  const fs::path file = folder / "chat_template.jinja";
  if (fs::is_regular_file(file))
    templates["default"] = read_text_file(file);
  if (!templates.empty())
    return templates;
  const json value = config_in(folder).value("chat_template", json());
  if (value.is_string())
    templates["default"] = value.get<std::string>();
  for (const json& named : value.is_array() ? value : json::array())
    templates[named.value("name", "")] = named.value("template", "");
  templates.erase("");
  return templates;
}

}  // namespace

void add_named_tokens(
    const fs::path& folder,
    const Tokenizer& tokenizer,
    const TokenList& tokens,
    std::vector<GgufEntry>& entries) {
  const json config = config_in(folder);
  for (const SpecialToken& token : kSpecialTokens) {
    const std::string key = fmt::format("tokenizer.ggml.{}", token.key);
    json text = config.value(token.name, json());
    if (text.is_object())
      text = text.value("content", json());
    if (!text.is_string() ||
        std::ranges::find(entries, key, &GgufEntry::key) != entries.end())
      continue;
    const auto id = tokenizer.token_id(text.get<std::string>());
    if (id && tokens.holds(*id))
      entries.push_back({key, static_cast<uint32_t>(*id)});
  }
}

void add_chat_templates(
    const fs::path& folder,
    std::vector<GgufEntry>& entries) {
  const std::string key = "tokenizer.chat_template";
  std::vector<std::string> names;
  for (auto& [name, text] : templates_in(folder)) {
    const bool is_usual = name == "default";
    entries.push_back({is_usual ? key : key + "." + name, std::move(text)});
    if (!is_usual)
      names.push_back(name);
  }
  if (!names.empty())
    entries.push_back({key + "s", std::move(names)});
}

}  // namespace brigade
