#include "cli/template_options.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/chat/record.h"

namespace brigade::cli {

void add_template_options(CLI::App& command, TemplateArguments& arguments) {
  CLI::Option* file = command.add_option(
      "--template,--chat-template",
      arguments.file,
      "A chat template in place of the tokenizer's, in Jinja");
  file->type_name("FILE");
  command
      .add_option(
          "--template-name",
          arguments.name,
          "Which of a tokenizer's several templates")
      ->excludes(file);
  command.add_option(
      "--template-variables",
      arguments.variables,
      "More names for the template, as JSON: {\"enable_thinking\": false}");
}

nlohmann::ordered_json template_variables(const TemplateArguments& arguments) {
  if (arguments.variables.empty())
    return nlohmann::ordered_json::object();
  nlohmann::ordered_json variables;
  try {
    variables = parse_record(arguments.variables);
  } catch (const DataError& error) {
    throw ConfigError(fmt::format(
        "--template-variables: {}; give a JSON object such as "
        "{{\"enable_thinking\": false}}",
        error.what()));
  }
  if (!variables.is_object())
    throw ConfigError(fmt::format(
        "--template-variables: {} is not a JSON object", arguments.variables));
  return variables;
}

}  // namespace brigade::cli
