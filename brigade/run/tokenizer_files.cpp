#include "brigade/run/tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"

namespace brigade {

namespace fs = std::filesystem;

std::vector<FileToCopy> find_tokenizer_files(
    const fs::path& path,
    const fs::path& model) {
  std::vector<FileToCopy> files;
  const auto has = [&](const std::string& name) {
    return std::ranges::find(files, name, &FileToCopy::name) != files.end();
  };
  const auto add = [&](const fs::path& source, const std::string& name) {
    if (!has(name) && fs::is_regular_file(source))
      files.push_back({source, name});
  };
  const auto add_descriptions = [&](const fs::path& folder) {
    // A template from elsewhere is in place of all of this folder's.
    const bool has_template = has("chat_template.jinja");
    for (const char* name : kTokenizerDescriptions)
      add(folder / name, name);
    if (has_template)
      return;
    for (const fs::path& file : more_chat_templates(folder))
      add(file, kMoreChatTemplates / file.filename());
  };
  const std::string extension = path.extension().string();
  if (fs::is_regular_file(path) &&
      (extension == ".json" || extension == ".model")) {
    const std::string name = "tokenizer" + extension;
    add(path, name);
    if (path.filename() == name)
      add_descriptions(path.parent_path());
  } else {
    for (const char* name : kTokenizerFiles)
      add(path / name, name);
    add_descriptions(path);
  }
  if (files.empty()) {
    throw DataError(fmt::format(
        "[export] the tokenizer '{}' is neither a .json or .model file nor a "
        "folder with one",
        path.string()));
  }
  const fs::path same = model / files.front().name;
  if (!model.empty() && fs::is_regular_file(same) &&
      read_text_file(same) == read_text_file(files.front().source))
    add_descriptions(model);
  return files;
}

}  // namespace brigade
