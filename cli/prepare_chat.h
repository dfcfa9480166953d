// The part of `brigade prepare` that is about conversations.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data/prepare.h"
#include "cli/template_options.h"

namespace brigade::cli {

struct ChatArguments {
  std::vector<std::string> files;
  std::string form = "auto";
  std::string loss = "auto";
  std::string too_long = "skip";
  TemplateArguments chat_template;
  int64_t samples_to_show = 0;
  PrepareChatOptions options;
};

void add_chat_options(CLI::App& command, ChatArguments& arguments);

// std::nullopt without --chat. Throws ConfigError.
std::optional<PrepareChatOptions> chat_options(const ChatArguments& arguments);

// Prints what was found, what is left out and, with --show, samples of the
// dataset that was written.
void print_chats(
    const ChatArguments& arguments,
    const PrepareResult& result,
    const std::string& prefix);

}  // namespace brigade::cli
