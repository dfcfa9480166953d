// brigade completion SHELL and brigade man [COMMAND]: what shells and man(1)
// read, from the command table itself.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/nearest.h"
#include "cli/app.h"
#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

CommandRow whole_table() {
  CLI::App app{"pre-trains Llama-like models on libtorch"};
  add_commands(app);
  return command_table(app);
}

std::string completion(const std::string& shell) {
  const CommandRow program = whole_table();
  if (shell == "bash")
    return bash_completion(program);
  return shell == "zsh" ? zsh_completion(program) : fish_completion(program);
}

struct ManArguments {
  std::string command;
  fs::path folder;
};

// The page of every command, as `man` finds them below FOLDER/man1.
void write_pages(const fs::path& folder) {
  const CommandRow program = whole_table();
  fs::create_directories(folder / "man1");
  write_text_file(folder / "man1" / "brigade.1", manual_page(program));
  for (const CommandRow& command : program.commands)
    write_text_file(
        folder / "man1" / fmt::format("brigade-{}.1", command.name),
        manual_page(program, command));
}

void print_page(const ManArguments& arguments) {
  if (!arguments.folder.empty())
    return write_pages(arguments.folder);
  const CommandRow program = whole_table();
  if (arguments.command.empty()) {
    fmt::print("{}", manual_page(program));
    return;
  }
  std::vector<std::string> names;
  for (const CommandRow& command : program.commands) {
    names.push_back(command.name);
    if (command.name != arguments.command)
      continue;
    fmt::print("{}", manual_page(program, command));
    return;
  }
  throw ConfigError(fmt::format(
      "[man] unknown command '{}'; the nearest is '{}'",
      arguments.command,
      names[nearest_name(arguments.command, names)]));
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto folder = std::make_shared<fs::path>();
  CLI::App* command = app.add_subcommand(
      "completion", "Print what completes commands and options in a shell");
  command->add_option("shell", *shell, "The shell")
      ->required()
      ->check(one_of({"bash", "zsh", "fish"}));
  command->add_option("-o,--out", *folder, "Write it there (default: print it)")
      ->type_name("FILE");
  command->footer(
      "Example: source <(brigade completion bash)\n"
      "         brigade completion fish > "
      "~/.config/fish/completions/brigade.fish\n\n"
      "The packages install all three.");
  command->callback([shell, folder] {
    const std::string text = completion(*shell);
    if (folder->empty())
      fmt::print("{}", text);
    else
      write_text_file(*folder, text);
  });
}

void add_man(CLI::App& app) {
  auto arguments = std::make_shared<ManArguments>();
  CLI::App* command =
      app.add_subcommand("man", "Print the manual page of a command");
  command
      ->add_option(
          "command", arguments->command, "A command (default: the program)")
      ->type_name("COMMAND");
  command
      ->add_option(
          "--folder",
          arguments->folder,
          "Write all pages below DIR/man1 instead")
      ->type_name("DIR");
  command->footer("Example: brigade man train | man -l -");
  command->callback([arguments] { print_page(*arguments); });
}

}  // namespace brigade::cli
