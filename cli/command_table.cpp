#include "cli/command_table.h"

#include <algorithm>

namespace brigade::cli {

namespace {

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// CLI11 keeps what one_of() allows as "TEXT:{a,b}" only.
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find(":{");
  if (begin == std::string::npos || type.back() != '}')
    return {};
  std::vector<std::string> choices{""};
  for (const char c : type.substr(begin + 2, type.size() - begin - 3)) {
    if (c == ',')
      choices.emplace_back();
    else
      choices.back() += c;
  }
  return choices;
}

bool names_files(const std::string& value) {
  for (const char* word : {"FILE", "DIR", "RUN", "PREFIX", "SPEC", "PATH"}) {
    if (value.find(word) != std::string::npos)
      return true;
  }
  return false;
}

OptionRow row_of(const CLI::Option& option) {
  OptionRow row;
  for (const std::string& name : option.get_snames())
    row.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames())
    row.names.push_back("--" + name);
  row.help = on_one_line(option.get_description());
  row.initial = option.get_default_str();
  row.is_required = option.get_required();
  if (option.get_items_expected_max() == 0)
    return row;  // a flag
  const std::string type = option.get_type_name();
  row.choices = choices_of(type);
  row.value = type.substr(0, type.find(':'));
  if (!row.choices.empty()) {
    row.value.clear();
    for (const std::string& choice : row.choices)
      row.value += (row.value.empty() ? "" : "|") + choice;
  } else if (row.value == "TEXT" && row.names.empty()) {
    row.value = option.get_name();
  }
  if (row.value.empty())
    row.value = "VALUE";
  row.takes_files = names_files(row.value) ||
                    row.help.find("file") != std::string::npos ||
                    row.help.find("older") != std::string::npos;
  return row;
}

}  // namespace

CommandRow command_table(const CLI::App& app) {
  CommandRow command{
      .name = app.get_name(),
      .help = on_one_line(app.get_description()),
      .footer = app.get_footer(),
      .options = {},
      .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    // An empty group is CLI11's way to hide one.
    if (!option->get_group().empty())
      command.options.push_back(row_of(*option));
  }
  for (const CLI::App* each : app.get_subcommands(nullptr)) {
    if (!each->get_group().empty())
      command.commands.push_back(command_table(*each));
  }
  return command;
}

}  // namespace brigade::cli
