// The commands and their options as data, read from CLI11's tree of them: what
// the manual pages and the shells' completions are made of.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace brigade::cli {

struct OptionRow {
  std::vector<std::string> names;  // "-o", "--out"; empty: positional
  std::string value;               // "FILE", "auto|text|jsonl"; empty: a flag
  std::string help;                // one sentence
  std::string initial;  // its default; empty: none, or said in `help`
  std::vector<std::string> choices;  // all values that it takes; empty: any
  bool takes_files = false;
  bool is_required = false;
};

struct CommandRow {
  std::string name;  // "checkpoint"
  std::string help;
  std::string footer;  // examples
  std::vector<OptionRow> options;
  std::vector<CommandRow> commands;  // of "checkpoint": "list", "verify", ...
};

// `app` itself, with all below it. PURE.
CommandRow command_table(const CLI::App& app);

// troff, for man(1): of the whole program ("brigade.1"), or of one command of
// it ("brigade-train.1").
std::string manual_page(const CommandRow& program);
std::string manual_page(const CommandRow& program, const CommandRow& command);

// Scripts that the shells load. Where a command takes group.key=value, the keys
// of a config are completed as well.
std::string bash_completion(const CommandRow& program);
std::string zsh_completion(const CommandRow& program);
std::string fish_completion(const CommandRow& program);

}  // namespace brigade::cli
