// brigade inspect: what a dataset, tokenizer, weights, checkpoint or config
// holds. Recognises them by name and content.
#include "cli/inspect.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/data/teacher_file.h"
#include "cli/torch_commands.h"

namespace brigade::cli {
namespace fs = std::filesystem;

namespace {

// A gigabyte of the default k.
constexpr uint64_t kMostTeacherRecords = uint64_t{1} << 22;

// How sure the teacher is of its likeliest tokens.
std::string describe_probability(const TeacherSummary& summary) {
  return fmt::format(
      "{:.4f} together, {:.4f} left for all others; the mean over {} places{}",
      summary.probability,
      std::max(0.0, 1 - summary.probability),
      grouped(summary.predicted),
      summary.records == kMostTeacherRecords
          ? fmt::format(" in the first {} tokens", grouped(summary.records))
          : "");
}

void inspect_teacher(const fs::path& path) {
  const TeacherFile file(path);
  const TeacherFileInfo& info = file.info();
  print_rows(
      {{"teacher", info.model},
       {"log-probabilities",
        fmt::format(
            "of the {} likeliest tokens, with ids below {}",
            info.k,
            grouped(static_cast<uint64_t>(info.vocabulary)))},
       {"probability", describe_probability(file.summary(kMostTeacherRecords))},
       {"read",
        info.window_length == 0
            ? "each document by itself (dataset.packing)"
            : fmt::format(
                  "windows of {} tokens (training.seq_length)",
                  info.window_length)},
       {"dataset", file.dataset()}});
}

}  // namespace

void inspect(const InspectArguments& arguments) {
  const fs::path path = arguments.path;
  const std::string extension = path.extension().string();
  if (fs::is_directory(path))
    return inspect_folder(path, arguments);
  if (extension == ".safetensors")
    return inspect_safetensors(path, arguments);
  if (extension == ".json" && fs::exists(path))
    return inspect_json(path, arguments);
  if (extension == ".model" || (path == "bytes" && !fs::exists(path)))
    return inspect_tokenizer(arguments.path);
  if (fs::is_regular_file(path) && TeacherFile::is_one(path))
    return inspect_teacher(path);
  static constexpr const char* kDatasets[] = {".bin", ".idx", ".ds", ".npy"};
  const bool is_dataset =
      std::ranges::find(kDatasets, extension) != std::end(kDatasets);
  if (fs::is_regular_file(path) && !is_dataset)
    throw DataError(fmt::format(
        "[inspect] '{}' is none of the files that this command knows: .bin, "
        ".idx, .ds, .npy, .json, .model, .safetensors, a teacher's "
        "log-probabilities",
        path.string()));
  std::error_code error;
  const bool is_prefix = fs::exists(arguments.path + ".idx", error) ||
                         fs::exists(arguments.path + ".bin", error);
  if (!fs::exists(path) && !is_prefix)
    throw DataError(fmt::format(
        "[inspect] '{}' does not exist, and is no PREFIX of a dataset's .bin "
        "and .idx files",
        path.string()));
  inspect_dataset(arguments);
}

void print_rows(const Rows& rows) {
  size_t width = 0;
  for (const auto& [name, value] : rows)
    width = std::max(width, name.size());
  for (const auto& [name, value] : rows)
    fmt::print("{:<{}}  {}\n", name, width, value);
}

std::string grouped(uint64_t number) {
  std::string text = fmt::to_string(number);
  for (auto place = static_cast<ptrdiff_t>(text.size()) - 3; place > 0;
       place -= 3)
    text.insert(static_cast<size_t>(place), ",");
  return text;
}

std::string quoted(const std::string& text, size_t max_bytes) {
  std::string result = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    if (c == '\n')
      result += "\\n";
    else if (c == '\t')
      result += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  // Not in the middle of a character.
  if (text.size() > max_bytes) {
    size_t cut = result.size();
    while (cut > 1 && is_utf8_continuation(result[cut - 1]))
      --cut;
    if (cut > 1 && (static_cast<unsigned char>(result[cut - 1]) & 0x80) != 0)
      --cut;
    result.resize(cut);
  }
  return result + (text.size() > max_bytes ? "...\"" : "\"");
}

}  // namespace brigade::cli
