#include "cli/parse_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "brigade/json/nearest.h"

namespace brigade::cli {

namespace {

// The command that was given, "checkpoint prune" by its innermost.
const CLI::App& innermost(const CLI::App& app) {
  const auto used = app.get_subcommands();
  return used.empty() ? app : innermost(*used.front());
}

// "brigade checkpoint prune".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") +
         command.get_name();
}

std::string without_dashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return std::string(name);
}

// What to say about a word that is neither an option nor a value of this
// command.
std::string explain_extra(const CLI::App& command, const std::string& word) {
  const std::string help =
      fmt::format("{} --help lists all", full_name(command));
  if (!word.starts_with('-')) {
    if (!command.get_subcommands(nullptr).empty())
      return check_command(command, word);
    return fmt::format(
        "{} takes no argument '{}'; {}", full_name(command), word, help);
  }
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    // An empty group is CLI11's way to hide one.
    if (option->get_group().empty())
      continue;
    for (const std::string& each : option->get_lnames())
      names.push_back(each);
  }
  // A letter is near to any name.
  const std::string plain = without_dashes(name);
  const bool has_nearest = plain.size() > 1 && !names.empty();
  return fmt::format(
      "{} has no option {}{} ({})",
      full_name(command),
      name,
      has_nearest ? "; the nearest is --" + names[nearest_name(plain, names)]
                  : "",
      help);
}

// "Could not convert: --max-tokens = 1x", "--text: 1 required FILE missing",
// "--prompts: At Most 1 required but received 2" in one style.
std::string explain_value(std::string text) {
  constexpr std::string_view kConversion = "Could not convert: ";
  if (text.starts_with(kConversion)) {
    text.erase(0, kConversion.size());
    const size_t equals = text.find(" = ");
    return fmt::format(
        "{}: '{}' is not a value that it takes",
        text.substr(0, equals),
        equals == std::string::npos ? "" : text.substr(equals + 3));
  }
  const std::string option = text.substr(0, text.find(':'));
  if (text.ends_with(" missing"))
    return option + " needs a value";
  if (text.find("received") != std::string::npos)
    return option + " is given more than once";
  return text;
}

}  // namespace

std::string check_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    names.push_back(command->get_name());
  if (name.starts_with('-') ||
      std::find(names.begin(), names.end(), name) != names.end())
    return "";
  // What others call `export`.
  const std::string nearest =
      name == "convert" ? "export" : names[nearest_name(name, names)];
  return fmt::format(
      "unknown command '{}'; the nearest is '{}' (all: {})",
      name,
      nearest,
      fmt::join(names, ", "));
}

std::string explain_parse_error(
    const CLI::App& app,
    const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  // A typo first: what is missing may be what was meant.
  const bool takes_command = !command.get_subcommands(nullptr).empty();
  const bool has_extra =
      error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  for (const std::string& word : app.remaining(true)) {
    if (word == "--")
      break;
    if (word.starts_with('-') || takes_command || has_extra)
      return explain_extra(command, word);
  }
  return fmt::format(
      "{}; see {} --help", explain_value(error.what()), full_name(command));
}

}  // namespace brigade::cli
