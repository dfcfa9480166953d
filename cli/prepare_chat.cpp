#include "cli/prepare_chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "brigade/data/show_samples.h"
#include "brigade/launch/environment.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/options/choice.h"
#include "cli/options.h"
#include "cli/standard_streams.h"

namespace brigade::cli {
namespace {

SampleMarks sample_marks() {
  const auto environment = process_environment();
  if (::isatty(STDOUT_FILENO) == 1 &&
      allows_colour(environment("NO_COLOR"), environment("TERM")))
    return {"\033[32m", "\033[0m"};
  return {"[[", "]]"};
}

}  // namespace

void add_chat_options(CLI::App& command, ChatArguments& arguments) {
  command.add_option(
      "--chat",
      arguments.files,
      "In place of --input: files of conversations, or of pairs of a chosen "
      "and a rejected answer, one per line, a JSON list or a table (.parquet, "
      ".arrow); writes PREFIX.mask, which tokens count in the loss");
  command
      .add_option(
          "--chat-form",
          arguments.form,
          "What the lines are; auto: as their members show")
      ->check(CLI::IsMember(names_with_auto<ConversationForm>()))
      ->capture_default_str();
  command
      .add_option(
          "--loss",
          arguments.loss,
          "Tokens that count: the assistant's turns, the last of them, the "
          "completion of a prompt, or all; auto: assistant, of prompts "
          "completion, of text all")
      ->check(CLI::IsMember(names_with_auto<LossOn>()))
      ->capture_default_str();
  add_template_options(command, arguments.chat_template);
  command
      .add_option(
          "--max-tokens",
          arguments.options.max_tokens,
          "Of a conversation; 0: any number")
      ->check(whole_number(0, int64_t{1} << 31))
      ->capture_default_str();
  command
      .add_option(
          "--too-long",
          arguments.too_long,
          "What becomes of a conversation with more")
      ->check(one_of(choice_texts<TooLong>()))
      ->capture_default_str();
  command
      .add_option(
          "--show",
          arguments.samples_to_show,
          "Print so many samples; what counts is green, or in [[ ]]")
      ->check(whole_number(0, 1'000'000));
}

std::optional<PrepareChatOptions> chat_options(const ChatArguments& arguments) {
  if (arguments.files.empty())
    return std::nullopt;
  PrepareChatOptions options = arguments.options;
  // Without a value: "auto".
  options.form = find_choice<ConversationForm>(arguments.form);
  options.loss = find_choice<LossOn>(arguments.loss);
  options.too_long = *find_choice<TooLong>(arguments.too_long);
  options.now = std::time(nullptr);
  options.template_file = arguments.chat_template.file;
  options.template_name = arguments.chat_template.name;
  options.variables = template_variables(arguments.chat_template);
  return options;
}

void print_chats(
    const ChatArguments& arguments,
    const PrepareResult& result,
    const std::string& prefix) {
  const ChatCounts& counts = *result.chat;
  std::string forms;
  for (size_t i = 0; i < counts.forms.size(); ++i) {
    if (counts.forms[i] > 0)
      forms += fmt::format(
          "{}{} {}",
          forms.empty() ? "" : ", ",
          counts.forms[i],
          kChoices<ConversationForm>[i].name);
  }
  fmt::print("form       {}\n", forms);
  fmt::print(
      "loss       {} of {} tokens count ({:.1f} %)\n",
      result.counting_tokens,
      result.info.num_tokens,
      100 * static_cast<double>(result.counting_tokens) /
          static_cast<double>(result.info.num_tokens));
  if (counts.too_long > 0)
    fmt::print(
        "too long   {} conversation(s) with more than {} tokens were {}\n",
        counts.too_long,
        arguments.options.max_tokens,
        arguments.too_long == "cut" ? "cut" : "skipped");
  if (counts.without_targets > 0)
    fmt::print(
        "skipped    {} conversation(s) without a token that counts\n",
        counts.without_targets);
  if (counts.endless_turns > 0)
    note(
        "warning: {} turn(s) end without a special token, so that a model "
        "does not learn to stop; see docs/chat.md\n",
        counts.endless_turns);
  if (counts.equal_pairs > 0)
    fmt::print(
        "skipped    {} pair(s) whose chosen and rejected answer are equal\n",
        counts.equal_pairs);
  const SampleMarks marks = sample_marks();
  // A pair is two documents, the chosen answer first.
  const auto shown = std::min(
      static_cast<uint64_t>(arguments.samples_to_show) *
          (result.info.num_pairs > 0 ? 2 : 1),
      result.info.num_documents);
  for (uint64_t document = 0; document < shown; ++document)
    fmt::print(
        "\n{}", show_sample(prefix, result.info.tokenizer, document, marks));
}

}  // namespace brigade::cli
