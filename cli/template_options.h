// The options of commands that render conversations: which chat template, and
// what it is given.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace brigade::cli {

struct TemplateArguments {
  std::filesystem::path file;  // in place of the tokenizer's; "": that
  std::string name;            // which of its several; "": the usual one
  std::string variables;       // JSON; "": none
};

// --template, --template-name and --template-variables.
void add_template_options(CLI::App& command, TemplateArguments& arguments);

// Throws ConfigError where they are no JSON object.
nlohmann::ordered_json template_variables(const TemplateArguments& arguments);

}  // namespace brigade::cli
