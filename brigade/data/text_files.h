// The files of text: which a path leads to, and of which format each is.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "brigade/options/choice.h"

namespace brigade {

enum class TextFormat {
  kPlain,  // .txt: one document, or several with a separator
  // .jsonl: one JSON object per line, one document each; or one list of them,
  // as in .json.
  kJsonLines,
};
// Their names.
template <>
inline constexpr std::array kChoices<TextFormat>{
    Choice{TextFormat::kPlain, "text"},
    Choice{TextFormat::kJsonLines, "jsonl"}};

struct TextFile {
  std::filesystem::path path;
  std::optional<TextFormat> format;  // absent: TextReader goes by the content
  uint64_t size_bytes = 0;           // on disk; 0 for a pipe
  bool is_regular = true;            // a pipe can be read only once
  bool is_table = false;             // .parquet, .arrow; read as kJsonLines
};

// What a folder holds besides: neither text nor a table, nor hidden, or a file
// that is none of those which its state.json lists.
struct SkippedFiles {
  uint64_t count = 0;
  std::filesystem::path first;  // by name
};

// What becomes of the .json files of a folder: sets of conversations are often
// one list in one such file. Others, such as dataset_info.json, describe the
// files beside them.
enum class JsonFiles { kSkipped, kListsTaken };

// The files to read: a file is itself, "-" is standard input; a folder gives
// its .txt and .jsonl (plain, .gz, .zst), .parquet and .arrow files, where
// `json_files` says so its .json files that begin a list, those of its
// sub-folders included, in the order of their paths, hidden ones and links to a
// folder that they lie in left out, and of a folder that datasets'
// save_to_disk() wrote those alone that its state.json lists; `skipped` counts
// the others. `format` is that of the files that are named; absent: by
// extension (.json, where it begins a list), or else by content.
// Throws DataError for files that do not exist and folders without text or
// without a file that is listed.
std::vector<TextFile> find_text_files(
    const std::vector<std::filesystem::path>& paths,
    std::optional<TextFormat> format = std::nullopt,
    SkippedFiles* skipped = nullptr,
    JsonFiles json_files = JsonFiles::kSkipped);

}  // namespace brigade
