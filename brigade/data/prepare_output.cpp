#include "brigade/data/prepare_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/data/dataset_info.h"
#include "brigade/files/file.h"
#include "brigade/files/read_once.h"
#include "brigade/files/tokenizer_names.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Those that make a dataset, the one that is looked for first in front.
constexpr std::array kDatasetParts = {
    ".idx",
    ".bin",
    ".mask",
    ".reference.json"};
constexpr const char* kInfo = ".json";
constexpr const char* kFolder = ".tokenizer";
constexpr const char* kLock = ".lock";

// What is written as PREFIX.*.tmp-PID until all is complete.
constexpr std::array kWrittenParts = {".bin", ".idx", ".mask", kInfo, kFolder};

// What is copied of a tokenizer, and what chat needs beside it; not its other
// forms (vocab.json).
constexpr std::array kFilesOfTokenizer = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja"};

bool has_entry(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool are_same(const fs::path& left, const fs::path& right) {
  std::error_code error;
  const bool are_equal = fs::equivalent(left, right, error);
  return !error && are_equal;
}

// `file` and the folders that it lies in.
bool lies_in(fs::path file, const fs::path& folder) {
  std::error_code error;
  file = fs::canonical(file, error);
  if (error)
    return false;
  while (true) {
    if (are_same(file, folder))
      return true;
    const fs::path parent = file.parent_path();
    if (parent == file)
      return false;
    file = parent;
  }
}

// Whether it holds what prepare() writes there, and nothing else.
bool is_tokenizer_folder(const fs::path& folder) {
  std::error_code error;
  fs::recursive_directory_iterator entries(folder, error);
  if (error)
    return false;
  const std::set<fs::path> templates = more_chat_templates(folder);
  return std::all_of(
      fs::begin(entries),
      fs::end(entries),
      [&](const fs::directory_entry& entry) {
        const fs::path name = entry.path().lexically_relative(folder);
        return entry.is_regular_file(error)
                   ? templates.contains(entry.path()) ||
                         std::find(
                             kFilesOfTokenizer.begin(),
                             kFilesOfTokenizer.end(),
                             name) != kFilesOfTokenizer.end()
                   : entry.is_directory(error) && name == kMoreChatTemplates;
      });
}

// What an interrupted run left.
std::vector<fs::path> leftovers_of(const fs::path& prefix) {
  const fs::path folder = fs::absolute(prefix).parent_path();
  const std::string name = prefix.filename().string();
  std::vector<fs::path> leftovers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string other = entry.path().filename().string();
    for (const char* part : kWrittenParts) {
      if (other.starts_with(fmt::format("{}{}.tmp-", name, part)))
        leftovers.push_back(entry.path());
    }
  }
  return leftovers;
}

}  // namespace

void refuse_sources_in_output(
    const fs::path& prefix,
    const std::vector<PrepareSource>& sources) {
  std::vector<const char*> suffixes(kDatasetParts.begin(), kDatasetParts.end());
  suffixes.insert(suffixes.end(), {kInfo, kLock});
  std::vector<fs::path> outputs = leftovers_of(prefix);  // files and folders
  for (const char* suffix : suffixes) {
    if (has_entry(with_suffix(prefix, suffix)))
      outputs.push_back(with_suffix(prefix, suffix));
  }
  const fs::path folder = with_suffix(prefix, kFolder);
  for (const PrepareSource& source : sources) {
    const fs::path path =
        is_standard_input(source.path) ? fs::path("/dev/stdin") : source.path;
    const auto output =
        std::find_if(outputs.begin(), outputs.end(), [&](const auto& each) {
          return are_same(path, each) || lies_in(path, each);
        });
    if (output != outputs.end())
      throw ConfigError(fmt::format(
          "[prepare] {} '{}' is or lies in '{}', which --out {} would replace "
          "or remove: give another --out",
          source.option,
          input_name(source.path),
          output->string(),
          prefix.string()));
    if (has_entry(folder) && lies_in(path, folder))
      throw ConfigError(fmt::format(
          "[prepare] {} '{}' lies in '{}', which --out {} would replace: give "
          "another --out, or copy what is read to another place first",
          source.option,
          input_name(source.path),
          folder.string(),
          prefix.string()));
  }
}

void remove_leftovers(const fs::path& prefix) {
  for (const fs::path& path : leftovers_of(prefix)) {
    change_storage("remove", path, [&](std::error_code& error) {
      fs::remove_all(path, error);
    });
  }
}

void remove_unfinished(const fs::path& prefix) {
  std::error_code ignored;
  bool has_begun = false;  // else the lock may be another process's
  for (const char* part : kWrittenParts) {
    const fs::path path =
        fmt::format("{}{}.tmp-{}", prefix.string(), part, ::getpid());
    has_begun = fs::exists(path, ignored) || has_begun;
    fs::remove_all(path, ignored);
  }
  if (has_begun)
    fs::remove(with_suffix(prefix, kLock), ignored);
}

void refuse_existing_output(const fs::path& prefix) {
  std::vector<const char*> suffixes(kDatasetParts.begin(), kDatasetParts.end());
  suffixes.push_back(kFolder);
  for (const char* suffix : suffixes) {
    const fs::path path = with_suffix(prefix, suffix);
    if (has_entry(path))
      throw ConfigError(fmt::format(
          "[prepare] '{}' exists already: give another --out, or --overwrite "
          "to replace it",
          path.string()));
  }
}

void refuse_foreign_output(const fs::path& prefix) {
  const fs::path info = with_suffix(prefix, kInfo);
  if (has_entry(info) && !is_dataset_info(info))
    throw ConfigError(fmt::format(
        "[prepare] '{}' is there and describes no dataset of Brigade's, so it "
        "is not replaced: give another --out, or move it away",
        info.string()));
  const fs::path folder = with_suffix(prefix, kFolder);
  if (has_entry(folder) && !(has_entry(info) && is_tokenizer_folder(folder)))
    throw ConfigError(fmt::format(
        "[prepare] '{}' is there and not a copy of a tokenizer that prepare "
        "made beside a dataset, so it is not replaced: give another --out, or "
        "move it away",
        folder.string()));
  const fs::path lock = with_suffix(prefix, kLock);
  std::error_code error;
  const uintmax_t lock_bytes = fs::file_size(lock, error);
  if (!error && lock_bytes > 0)
    throw ConfigError(fmt::format(
        "[prepare] '{}' is there and no lock of prepare's, which is an empty "
        "file, so it is not removed: give another --out, or move it away",
        lock.string()));
}

void change_storage(
    const char* what,
    const fs::path& path,
    const std::function<void(std::error_code&)>& change) {
  std::error_code error;
  change(error);
  if (error) {
    throw StorageError(fmt::format(
        "[prepare] cannot {} '{}': {}", what, path.string(), error.message()));
  }
}

TokenizerFolder::TokenizerFolder(const fs::path& prefix)
    : path_(with_suffix(prefix, kFolder)),
      temporary_(fmt::format("{}.tmp-{}", path_.string(), ::getpid())) {
  change_storage("create", temporary_, [&](std::error_code& error) {
    fs::create_directories(temporary_, error);
  });
}

TokenizerFolder::~TokenizerFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void TokenizerFolder::copy(const fs::path& spec) {
  const bool is_folder = fs::is_directory(spec);
  const fs::path source = is_folder ? spec : spec.parent_path();
  if (!is_folder) {
    const bool is_json = spec.extension() == ".json";
    copy_file(spec, is_json ? "tokenizer.json" : "tokenizer.model");
  }
  for (const char* name : kFilesOfTokenizer) {
    const bool is_tokenizer = std::string_view(name).starts_with("tokenizer.");
    if ((is_folder || !is_tokenizer) && fs::exists(source / name))
      copy_file(source / name, name);
  }
  for (const fs::path& file : more_chat_templates(source))
    copy_file(file, kMoreChatTemplates / file.filename());
}

void TokenizerFolder::set_chat_template(const std::string& source) {
  std::error_code ignored;
  fs::remove_all(temporary_ / kMoreChatTemplates, ignored);
  write_text_file(temporary_ / "chat_template.jinja", source);
}

void TokenizerFolder::commit() {
  change_storage("remove", path_, [&](std::error_code& error) {
    fs::remove_all(path_, error);
  });
  change_storage("rename into place", path_, [&](std::error_code& error) {
    fs::rename(temporary_, path_, error);
  });
}

void TokenizerFolder::copy_file(const fs::path& from, const fs::path& name) {
  const fs::path folder = (temporary_ / name).parent_path();
  change_storage("create", folder, [&](std::error_code& error) {
    fs::create_directories(folder, error);
  });
  write_text_file(temporary_ / name, read_text_file(from));
}

}  // namespace brigade
