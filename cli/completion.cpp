#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/config/keys.h"
#include "cli/command_table.h"

namespace brigade::cli {

namespace {

// Whether group.key=value is among its arguments.
bool takes_keys(const CommandRow& command) {
  for (const OptionRow& option : command.options) {
    if (option.names.empty() && option.value == "group.key=value")
      return true;
  }
  return false;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys())
    names.push_back(fmt::format("{}.{}=", key.group, key.name));
  return names;
}

std::vector<std::string> names_of(const std::vector<CommandRow>& commands) {
  std::vector<std::string> names;
  for (const CommandRow& command : commands)
    names.push_back(command.name);
  return names;
}

std::vector<std::string> option_names(const CommandRow& command) {
  std::vector<std::string> names;
  for (const OptionRow& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// The text in single quotes, which all three shells read: none of ours has a
// quote or a backslash in it that must survive.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c != '\'' && c != '\\')
      result += c;
  }
  return result + "'";
}

std::string escaped_for_zsh(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':')
      result += '\\';
    if (c != '\'' && c != '\\')
      result += c;
  }
  return result;
}

std::string bash_cases(const CommandRow& command) {
  std::string text;
  for (const OptionRow& option : command.options) {
    if (option.names.empty() || option.value.empty())
      continue;
    text += fmt::format(
        "        {}) {} ;;\n",
        fmt::join(option.names, "|"),
        option.choices.empty()
            ? std::string(
                  option.takes_files ? "_brigade_files; return" : "return")
            : fmt::format(
                  "_brigade_words {}; return",
                  quoted(fmt::format("{}", fmt::join(option.choices, " ")))));
  }
  return text;
}

std::string zsh_option(const OptionRow& option) {
  std::string action;
  if (!option.value.empty()) {
    action = ":" + escaped_for_zsh(option.value) + ":";
    if (!option.choices.empty())
      action += fmt::format("({})", fmt::join(option.choices, " "));
    else if (option.takes_files)
      action += "_files";
  }
  const std::string help = escaped_for_zsh(option.help);
  if (option.names.empty())
    return "";
  if (option.names.size() == 1)
    return fmt::format(" '{}[{}]{}'", option.names[0], help, action);
  // One of several names: after it the others are offered no more.
  return fmt::format(
      " '({})'{{{}}}'[{}]{}'",
      fmt::join(option.names, " "),
      fmt::join(option.names, ","),
      help,
      action);
}

std::string zsh_arguments(const CommandRow& command) {
  std::string text = "_arguments -S";
  for (const OptionRow& option : command.options)
    text += zsh_option(option);
  if (takes_keys(command))
    text += " '*:key:_brigade_keys'";
  else
    text += " '*:file:_files'";
  return text;
}

}  // namespace

std::string bash_completion(const CommandRow& program) {
  std::string text = fmt::format(
      "# bash completion for brigade; made by `brigade completion bash`.\n"
      // These see the variables of their caller.
      "_brigade_words() {{\n"
      "  COMPREPLY=($(compgen -W \"$1\" -- \"$current\"))\n}}\n"
      "_brigade_files() {{\n"
      "  COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  compopt -o filenames 2>/dev/null\n}}\n"
      "_brigade() {{\n"
      "  local current=$2 before=$3 command=${{COMP_WORDS[1]}} keys= options=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    _brigade_words {}\n    return\n  fi\n"
      "  case $command in\n",
      quoted(fmt::format(
          "{} --help --version --cmake-dir",
          fmt::join(names_of(program.commands), " "))));
  for (const CommandRow& command : program.commands) {
    text += fmt::format("    {})\n", command.name);
    std::string cases = bash_cases(command);
    for (const CommandRow& action : command.commands)
      cases += bash_cases(action);
    if (!cases.empty())
      text += "      case $before in\n" + cases + "      esac\n";
    std::vector<std::string> names = option_names(command);
    if (!command.commands.empty()) {
      text += fmt::format(
          "      if [ \"$COMP_CWORD\" -eq 2 ]; then _brigade_words {}; return; "
          "fi\n",
          quoted(fmt::format(
              "{} --help", fmt::join(names_of(command.commands), " "))));
      for (const CommandRow& action : command.commands) {
        const auto more = option_names(action);
        names.insert(names.end(), more.begin(), more.end());
      }
    }
    text += fmt::format(
        "      options={}\n{}      ;;\n",
        quoted(fmt::format("{}", fmt::join(names, " "))),
        takes_keys(command) ? "      keys=yes\n" : "");
  }
  text += fmt::format(
      "    *) return ;;\n  esac\n"
      "  if [[ $current == -* ]]; then\n    _brigade_words \"$options\"\n"
      "  elif [ -n \"$keys\" ]; then\n"
      "    _brigade_words {}\n    compopt -o nospace 2>/dev/null\n"
      "  else\n    _brigade_files\n  fi\n}}\n"
      "complete -F _brigade brigade\n",
      quoted(fmt::format("{}", fmt::join(key_names(), " "))));
  return text;
}

std::string zsh_completion(const CommandRow& program) {
  std::string text =
      "#compdef brigade\n"
      "# zsh completion for brigade; made by `brigade completion zsh`.\n"
      "_brigade_keys() {\n  compadd -S '' --";
  for (const std::string& key : key_names())
    text += " " + quoted(key);
  text += "\n}\n_brigade() {\n  local -a commands\n  commands=(\n";
  for (const CommandRow& command : program.commands)
    text += fmt::format(
        "    '{}:{}'\n", command.name, escaped_for_zsh(command.help));
  text +=
      "  )\n  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    _arguments '--help[what there is]' '--version[the version]' "
      "'--cmake-dir[the folder of the CMake package]'\n"
      "    return\n  fi\n"
      "  local command=$words[2]\n"
      "  words=(\"$words[1] $words[2]\" \"${(@)words[3,-1]}\")\n"
      "  (( CURRENT -= 1 ))\n"
      "  case $command in\n";
  for (const CommandRow& command : program.commands) {
    text += fmt::format("    {})\n", command.name);
    if (!command.commands.empty()) {
      text += "      if (( CURRENT == 2 )); then\n        _values action";
      for (const CommandRow& action : command.commands)
        text +=
            fmt::format(" '{}[{}]'", action.name, escaped_for_zsh(action.help));
      text += "\n        return\n      fi\n";
      CommandRow all = command;
      for (const CommandRow& action : command.commands) {
        for (const OptionRow& option : action.options) {
          if (option.names != all.options.front().names)
            all.options.push_back(option);
        }
      }
      text += "      " + zsh_arguments(all) + " ;;\n";
    } else {
      text += "      " + zsh_arguments(command) + " ;;\n";
    }
  }
  return text + "  esac\n}\n_brigade \"$@\"\n";
}

std::string fish_completion(const CommandRow& program) {
  std::string text =
      "# fish completion for brigade; made by `brigade completion fish`.\n"
      "complete -c brigade -n __fish_use_subcommand -f\n"
      "complete -c brigade -n __fish_use_subcommand -l help\n"
      "complete -c brigade -n __fish_use_subcommand -l version\n"
      "complete -c brigade -n __fish_use_subcommand -l cmake-dir\n";
  const auto add = [&](const std::string& command, const OptionRow& option) {
    if (option.names.empty())
      return;
    text += fmt::format(
        "complete -c brigade -n '__fish_seen_subcommand_from {}'", command);
    for (const std::string& name : option.names)
      text += name.starts_with("--") ? " -l " + name.substr(2)
                                     : " -s " + name.substr(1);
    if (!option.value.empty())
      text += option.choices.empty()
                  ? std::string(option.takes_files ? " -r -F" : " -x")
                  : " -x -a " + quoted(fmt::format(
                                    "{}", fmt::join(option.choices, " ")));
    text += " -d " + quoted(option.help) + "\n";
  };
  for (const CommandRow& command : program.commands) {
    text += fmt::format(
        "complete -c brigade -n __fish_use_subcommand -a {} -d {}\n",
        command.name,
        quoted(command.help));
    for (const OptionRow& option : command.options)
      add(command.name, option);
    for (const CommandRow& action : command.commands) {
      text += fmt::format(
          "complete -c brigade -n '__fish_seen_subcommand_from {}' -a {} -d "
          "{}\n",
          command.name,
          action.name,
          quoted(action.help));
      for (const OptionRow& option : action.options)
        add(action.name, option);
    }
    if (takes_keys(command))
      text += fmt::format(
          "complete -c brigade -n '__fish_seen_subcommand_from {}' -f -a {}\n",
          command.name,
          quoted(fmt::format("{}", fmt::join(key_names(), " "))));
  }
  return text;
}

}  // namespace brigade::cli
