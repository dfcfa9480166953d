#include "brigade/data/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "brigade/base/byte_order_mark.h"
#include "brigade/base/error.h"
#include "brigade/data/byte_stream.h"
#include "brigade/data/table_stream.h"
#include "brigade/files/file.h"
#include "brigade/files/read_once.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Whether a [ is the first of its characters, but for white space and a byte
// order mark.
bool begins_list(const fs::path& path) {
  std::array<char, 256> bytes{};
  const size_t count = open_byte_stream(path)->read(bytes.data(), bytes.size());
  std::string_view text(bytes.data(), count);
  if (text.starts_with(kByteOrderMark))
    text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

std::optional<TextFormat> format_of(
    const fs::path& path,
    JsonFiles json_files = JsonFiles::kSkipped) {
  // A.TXT.GZ comes from systems that do not tell letters apart.
  std::string lower = path.filename().string();
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  fs::path name = lower;
  if (name.extension() == ".gz" || name.extension() == ".zst")
    name = name.stem();
  if (name.extension() == ".txt")
    return TextFormat::kPlain;
  const bool is_list = name.extension() == ".json" &&
                       json_files == JsonFiles::kListsTaken &&
                       begins_list(path);
  if (name.extension() == ".jsonl" || is_list || is_table(path))
    return TextFormat::kJsonLines;
  return std::nullopt;
}

// Whether the entry is a link to a folder that it lies in.
bool is_loop(const fs::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_symlink(error))
    return false;
  const fs::path target = fs::canonical(entry.path(), error);
  if (error)
    return false;
  const fs::path here = fs::canonical(entry.path().parent_path(), error);
  return !error &&
         std::mismatch(target.begin(), target.end(), here.begin(), here.end())
                 .first == target.end();
}

// Of folders that datasets' save_to_disk() wrote, the files that they hold, by
// folder. What map() and filter() computed lies beside them.
using SavedFiles = std::map<fs::path, std::set<fs::path>>;

void read_state(const fs::path& state, SavedFiles& saved) {
  const auto json = parse_json_or_nothing(read_text_file(state));
  if (!json || !json->is_object() || !json->contains("_data_files"))
    return;
  const fs::path folder = state.parent_path();
  std::set<fs::path>& files = saved[folder];
  for (const auto& file : json->at("_data_files")) {
    const auto name = file.find("filename");
    if (name == file.end() || !name->is_string())
      continue;
    const fs::path path = folder / name->get_ref<const std::string&>();
    if (!fs::exists(path))
      throw DataError(fmt::format(
          "[text_reader] '{}' lists '{}', which does not exist",
          state.string(),
          path.string()));
    files.insert(path.filename());
  }
}

void add_folder(
    const fs::path& folder,
    JsonFiles json_files,
    std::vector<TextFile>& files,
    SkippedFiles& skipped) {
  std::vector<fs::path> found;
  SavedFiles saved;
  const auto skip = [&](const fs::path& path) {
    if (skipped.count++ == 0 || path < skipped.first)
      skipped.first = path;
  };
  const auto options = fs::directory_options::follow_directory_symlink |
                       fs::directory_options::skip_permission_denied;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(folder, options, error);
  for (; !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    const fs::path path = entry->path();
    std::error_code unknown;
    const bool is_folder = entry->is_directory(unknown);
    if (path.filename().string().starts_with('.') || is_loop(*entry)) {
      if (is_folder)
        entry.disable_recursion_pending();
    } else if (entry->is_regular_file(unknown) && format_of(path, json_files)) {
      found.push_back(path);
    } else if (!is_folder) {
      skip(path);
      if (path.filename() == "state.json")
        read_state(path, saved);
    }
  }
  if (error)
    throw DataError(fmt::format(
        "[text_reader] the folder '{}' cannot be read: {}",
        folder.string(),
        error.message()));
  std::erase_if(found, [&](const fs::path& path) {
    const auto listed = saved.find(path.parent_path());
    const bool is_left_out =
        listed != saved.end() && !listed->second.contains(path.filename());
    if (is_left_out)
      skip(path);
    return is_left_out;
  });
  if (found.empty()) {
    throw DataError(fmt::format(
        "[text_reader] the folder '{}' holds no .txt or .jsonl file (plain, "
        ".gz or .zst), and no .parquet{} or .arrow file{}",
        folder.string(),
        json_files == JsonFiles::kListsTaken ? ", .json (of a list)" : "",
        skipped.count == 0 ? ""
                           : fmt::format(
                                 "; skipped are {} other file(s), such as '{}'",
                                 skipped.count,
                                 skipped.first.string())));
  }
  std::sort(found.begin(), found.end());
  for (const fs::path& path : found)
    files.push_back(
        {.path = path,
         .format = format_of(path, json_files),
         .size_bytes = fs::file_size(path),
         .is_table = is_table(path)});
}

}  // namespace

std::vector<TextFile> find_text_files(
    const std::vector<fs::path>& paths,
    std::optional<TextFormat> format,
    SkippedFiles* skipped,
    JsonFiles json_files) {
  SkippedFiles ignored;
  std::vector<TextFile> files;
  for (const fs::path& given : paths) {
    const fs::path path = given == "-" ? fs::path("/dev/stdin") : given;
    if (is_standard_input(path) && is_standard_input_closed())
      throw DataError("[text_reader] standard input is closed");
    refuse_loop(path);
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
      throw DataError(
          error && error != std::errc::no_such_file_or_directory
              ? fmt::format(
                    "[text_reader] '{}' cannot be read: {}",
                    path.string(),
                    error.message())
              : fmt::format(
                    "[text_reader] '{}' does not exist", path.string()));
    }
    if (fs::is_directory(status)) {
      add_folder(
          path, json_files, files, skipped == nullptr ? ignored : *skipped);
      continue;
    }
    // A pipe has no size; then there is no progress to show either.
    const bool is_file = fs::is_regular_file(status);
    files.push_back(
        {.path = path,
         .format = format ? format
                          : format_of(
                                path,
                                is_file ? JsonFiles::kListsTaken
                                        : JsonFiles::kSkipped),
         .size_bytes = is_file ? fs::file_size(path) : 0,
         .is_regular = is_file,
         .is_table = !format && is_table(path)});
  }
  return files;
}

}  // namespace brigade
