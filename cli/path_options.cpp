#include "cli/parse_errors.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/usual_path.h"

namespace brigade::cli {

namespace {

bool is_among(
    const std::vector<std::string_view>& names,
    const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// By its type or, of an option without one, by its name.
bool names_path(CLI::Option& option) {
  const std::string type = option.get_type_name();
  for (const char* word : {"FILE", "DIR", "PREFIX", "SPEC"}) {
    if (type.find(word) != std::string::npos)
      return true;
  }
  return is_among(
      {"input", "out", "run", "runs", "path", "tokenizer", "checkpoint"},
      option.get_single_name());
}

[[noreturn]] void refuse_path(
    const std::string& option,
    const std::string& what) {
  if (is_among({"config", "template"}, option))
    throw ConfigError(what);
  if (is_among(
          {"out",
           "out_dir",
           "folder",
           "scores",
           "html",
           "config-out",
           "machine-out"},
          option))
    throw StorageError(what);
  throw DataError(what);
}

void add_check(CLI::Option& option) {
  const std::string name = option.get_single_name();
  option.check(CLI::Validator(
      [name](const std::string& text) {
        if (text.empty())
          return std::string("a name of a file or folder is empty");
        if (const auto loop = loop_in(text))
          refuse_path(name, describe_loop(*loop));
        return std::string();
      },
      ""));
}

}  // namespace

void check_path_options(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (names_path(*option))
      add_check(*option);
  }
  for (CLI::App* command : app.get_subcommands(nullptr))
    check_path_options(*command);
}

}  // namespace brigade::cli
