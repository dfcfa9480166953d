#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

#include "brigade/base/version.h"
#include "cli/command_table.h"

namespace brigade::cli {

namespace {

// As troff prints it: backslashes and hyphens are its own otherwise, and so is
// a full stop or an apostrophe that begins a line.
std::string roff(const std::string& text) {
  std::string result;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\''))
      result += "\\&";
    begins_line = c == '\n';
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  return result;
}

std::string heading(const std::string& page, const std::string& help) {
  std::string title;
  for (const char c : page)
    title += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(
      ".TH {} 1 \"\" \"brigade {}\" \"Brigade\"\n.SH NAME\n{} \\- {}\n",
      roff(title),
      version(),
      roff(page),
      roff(help));
}

std::string option_text(const OptionRow& option) {
  std::string term;
  for (const std::string& name : option.names)
    term += fmt::format("{}\\fB{}\\fR", term.empty() ? "" : ", ", roff(name));
  if (!option.value.empty())
    term += fmt::format(
        "{}\\fI{}\\fR", term.empty() ? "" : " ", roff(option.value));
  std::string text = fmt::format(".TP\n{}\n{}", term, roff(option.help));
  if (!option.initial.empty())
    text += fmt::format(" (default: {})", roff(option.initial));
  if (option.is_required)
    text += " (required)";
  return text + "\n";
}

std::string options_text(const CommandRow& command) {
  std::string text;
  for (const OptionRow& option : command.options)
    text += option_text(option);
  return text;
}

std::string footer_text(const CommandRow& command) {
  if (command.footer.empty())
    return "";
  return fmt::format(
      ".SH EXAMPLES AND NOTES\n.nf\n{}\n.fi\n", roff(command.footer));
}

constexpr const char* kExitCodes =
    ".SH EXIT STATUS\n"
    "0 success; 1 an unexpected error; 2 config or command line; 3 a peer was "
    "lost or timed out; 4 a file has wrong content; 5 loss or gradient not "
    "finite; 6 disk full or input/output error; 7 a step took too long.\n";

}  // namespace

std::string manual_page(const CommandRow& program) {
  std::string text = heading(program.name, program.help);
  text += fmt::format(
      ".SH SYNOPSIS\n\\fB{}\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH "
      "COMMANDS\n",
      roff(program.name));
  for (const CommandRow& command : program.commands)
    text += fmt::format(
        ".TP\n\\fB{0}\\fR\n{1}: see \\fB{2}\\-{0}\\fR(1)\n",
        roff(command.name),
        roff(command.help),
        roff(program.name));
  text += ".SH OPTIONS\n" + options_text(program);
  return text + kExitCodes;
}

std::string manual_page(const CommandRow& program, const CommandRow& command) {
  std::string text =
      heading(fmt::format("{}-{}", program.name, command.name), command.help);
  text += fmt::format(
      ".SH SYNOPSIS\n\\fB{} {}\\fR{} [\\fIOPTIONS\\fR]\n",
      roff(program.name),
      roff(command.name),
      command.commands.empty() ? "" : " \\fIACTION\\fR");
  if (!command.commands.empty()) {
    text += ".SH ACTIONS\n";
    for (const CommandRow& action : command.commands)
      text += fmt::format(
          ".SS {}\n{}\n{}",
          roff(action.name),
          roff(action.help),
          options_text(action));
  }
  text += ".SH OPTIONS\n" + options_text(command) + footer_text(command);
  return text + kExitCodes +
         fmt::format(".SH SEE ALSO\n\\fB{}\\fR(1)\n", roff(program.name));
}

}  // namespace brigade::cli
