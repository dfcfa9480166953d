// brigade inspect: what a dataset, tokenizer, weights, checkpoint or config
// holds. Recognises them by name and content.
#include "cli/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "brigade/base/error.h"
#include "cli/commands.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;

void run(const InspectArguments& arguments) {
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
  inspect_dataset(arguments);
}

}  // namespace

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

std::string readable_bytes(uint64_t size) {
  static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(size);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit)
    value /= 1000;
  return unit == 0 ? fmt::format("{} bytes", size)
                   : fmt::format("{:.2f} {}", value, kUnits[unit]);
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
    while (cut > 1 &&
           (static_cast<unsigned char>(result[cut - 1]) & 0xC0) == 0x80)
      --cut;
    if (cut > 1 && (static_cast<unsigned char>(result[cut - 1]) & 0x80) != 0)
      --cut;
    result.resize(cut);
  }
  return result + (text.size() > max_bytes ? "...\"" : "\"");
}

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show what a dataset, tokenizer, safetensors file, checkpoint or config "
      "holds");
  command
      ->add_option(
          "path",
          arguments->path,
          "PREFIX, .bin, .idx, .ds, .npy, tokenizer.json, .model, "
          ".safetensors, config.json, or a folder")
      ->required();
  command->add_option(
      "-t,--tokenizer",
      arguments->tokenizer,
      "Shows a dataset's text with this tokenizer [the dataset's own]");
  command->add_option(
      "--document",
      arguments->document,
      "Shows this document of a dataset, counted from 0, whole");
  command->add_flag(
      "--all",
      arguments->list_all,
      "Lists every tensor, not one line for all layers");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace brigade::cli
