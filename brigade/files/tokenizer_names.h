// The files of a tokenizer in a folder, by the names that transformers gives
// them.
#pragma once

#include <array>
#include <filesystem>
#include <set>
#include <system_error>

namespace brigade {

// The tokenizer: the first of them that is there.
inline constexpr std::array kTokenizerFiles = {
    "tokenizer.json",
    "tokenizer.model"};

// What describes a tokenizer, or is one in another form.
inline constexpr std::array kTokenizerDescriptions = {
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja"};

// The folder of chat templates beside chat_template.jinja, NAME.jinja each.
inline constexpr const char* kMoreChatTemplates = "additional_chat_templates";

// Those of FOLDER, sorted.
inline std::set<std::filesystem::path> more_chat_templates(
    const std::filesystem::path& folder) {
  std::error_code error;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           folder / kMoreChatTemplates, error)) {
    if (entry.path().extension() == ".jinja")
      files.insert(entry.path());
  }
  return files;
}

// FOLDER/tokenizer.json or FOLDER/tokenizer.model; empty: there is none that
// can be seen, or `folder` is empty.
inline std::filesystem::path find_tokenizer_file(
    const std::filesystem::path& folder) {
  std::error_code error;
  for (const char* name : kTokenizerFiles) {
    if (!folder.empty() && std::filesystem::exists(folder / name, error))
      return folder / name;
  }
  return {};
}

}  // namespace brigade
