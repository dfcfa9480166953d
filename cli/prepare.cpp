// brigade prepare: text files to a dataset of tokens.
#include "brigade/data/prepare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/base/shell_word.h"
#include "brigade/config/given.h"
#include "brigade/data/prepare_output.h"
#include "brigade/metrics/progress_bar.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/prepare_chat.h"
#include "cli/rate_bar.h"
#include "cli/signal_cleanup.h"
#include "cli/standard_streams.h"

namespace brigade::cli {
namespace {

// "\n" and "\t" as people can type them on a command line.
std::string unescaped(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char following = i + 1 < text.size() ? text[i + 1] : '\0';
    if (text[i] == '\\' && (following == 'n' || following == 't')) {
      result += following == 'n' ? '\n' : '\t';
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

// Shows one bar for each of the two passes over the text, and between them how
// long SentencePiece learns.
class PrepareBar {
 public:
  void show(const PrepareProgress& progress) {
    if (!bar_ || progress.stage != stage_)
      begin(progress);
    if (stage_ == Stage::kLearnTokens)
      return;
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - begin_;
    bar_->draw(
        static_cast<int64_t>(progress.bytes_read),
        fmt::format(
            "{:.1f} MB/s  {} tokens",
            static_cast<double>(progress.bytes_read) / 1e6 /
                std::max(1e-3, elapsed.count()),
            progress.num_tokens));
  }

  void clear() {
    clock_ = {};
    bar_ = nullptr;
  }

 private:
  using Stage = PrepareProgress::Stage;

  void begin(const PrepareProgress& progress) {
    clear();
    stage_ = progress.stage;
    begin_ = std::chrono::steady_clock::now();
    const bool learns = stage_ == Stage::kLearnTokens;
    bar_ = std::make_unique<ProgressBar>(
        stage_ == Stage::kTokenize ? "tokenizing"
        : learns ? "training the tokenizer: learning tokens from the text"
                 : "training the tokenizer: reading",
        learns ? 0 : static_cast<int64_t>(progress.total_bytes),
        visible_on_stderr());
    if (learns && visible_on_stderr() == ProgressBar::Visible::kYes)
      clock_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  // Draws the seconds, alone at the bar until it is joined.
  void run(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      const std::chrono::duration<double> elapsed =
          std::chrono::steady_clock::now() - begin_;
      bar_->draw(0, fmt::format("{:.0f} s", elapsed.count()));
      stopped.wait_for(
          lock, stop, std::chrono::seconds(1), [] { return false; });
    }
  }

  std::unique_ptr<ProgressBar> bar_;
  Stage stage_ = Stage::kTokenize;
  std::chrono::steady_clock::time_point begin_;
  std::jthread clock_;  // in kLearnTokens
};

struct PrepareArguments {
  std::vector<std::string> inputs;
  std::string out;
  bool prepend_bos = false;
  bool append_eos = true;
  bool overwrite = false;
  bool skip_bad_lines = false;
  std::string format = "auto";
  std::string encoding = "utf-8";
  std::string separator;
  ChatArguments chat;
  PrepareOptions options;
};

PrepareOptions prepare_options(const PrepareArguments& arguments) {
  PrepareOptions options = arguments.options;
  options.inputs.assign(arguments.inputs.begin(), arguments.inputs.end());
  options.chat = chat_options(arguments.chat);
  if (options.chat)
    options.inputs.assign(
        arguments.chat.files.begin(), arguments.chat.files.end());
  options.out_prefix = dataset_prefix(arguments.out);
  if (!arguments.append_eos)
    options.end_of_document = PrepareOptions::EndOfDocument::kNone;
  if (arguments.overwrite)
    options.existing = PrepareOptions::Existing::kOverwrite;
  if (arguments.skip_bad_lines)
    options.bad_lines = BadLines::kSkip;
  options.format = find_choice<TextFormat>(arguments.format);  // none: "auto"
  options.text.encoding = *find_choice<TextEncoding>(arguments.encoding);
  options.text.document_separator = unescaped(arguments.separator);
  return options;
}

void run(const PrepareArguments& arguments) {
  // A file that grows past a limit is an error to report, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  PrepareOptions options = prepare_options(arguments);
  const SignalCleanup cleanup(
      [prefix = options.out_prefix] { remove_unfinished(prefix); });
  PrepareBar bar;
  options.on_progress = [&](const PrepareProgress& p) { bar.show(p); };
  const auto begin = std::chrono::steady_clock::now();
  const PrepareResult result = prepare(options);
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - begin;
  bar.clear();

  const DatasetInfo& info = result.info;
  const std::string prefix = options.out_prefix.string();
  fmt::print("tokenizer  {}\n", info.tokenizer);
  fmt::print(
      "text       {} in {} file(s), {} document(s){}\n",
      readable_bytes(static_cast<double>(result.text_bytes)),
      info.sources.size(),
      info.num_documents,
      result.empty_documents == 0
          ? ""
          : fmt::format(
                ", and {} empty one(s) left out", result.empty_documents));
  if (result.skipped.count > 0)
    fmt::print(
        "skipped    {} file(s) beside text (.txt, .jsonl) and tables "
        "(.parquet, .arrow), such as '{}'\n",
        result.skipped.count,
        result.skipped.first.string());
  if (result.bad_lines > 0) {
    fmt::print(
        "skipped    {} line(s) or row(s) without a document\n",
        result.bad_lines);
    for (const std::string& line : result.first_bad_lines)
      note("skipped: {}\n", line);
    if (result.bad_lines > result.first_bad_lines.size())
      note(
          "skipped: {} more\n",
          result.bad_lines - result.first_bad_lines.size());
  }
  fmt::print(
      "tokens     {} ({}, {:.2f} bytes of text each{}), vocabulary {}\n",
      info.num_tokens,
      info.token_type,
      static_cast<double>(result.text_bytes) /
          static_cast<double>(info.num_tokens),
      info.eos_id ? fmt::format(", token {} ends each document", *info.eos_id)
                  : "",
      info.vocab_size);
  fmt::print(
      "time       {:.1f} s, {}/s\n",
      elapsed.count(),
      readable_bytes(static_cast<double>(result.text_bytes) / elapsed.count()));
  fmt::print(
      "written    {0}.bin, {0}.idx, {1}{0}.json\n",
      prefix,
      result.chat ? prefix + ".mask, " : "");
  fmt::print(
      "next       brigade train --config FILE {}\n",
      shell_word(text_override("dataset.name", prefix)));
  if (result.chat)
    print_chats(arguments.chat, result, prefix);
}

// What the files are, and where their text is.
void add_text_options(CLI::App& command, PrepareArguments& arguments) {
  command
      .add_option(
          "--json-key,--column",
          arguments.options.text.json_key,
          "The member of each JSON object, or the column of a table, that "
          "holds the text")
      ->capture_default_str();
  command
      .add_option(
          "--python",
          arguments.options.text.python,
          "The Python with PyArrow that reads .parquet and .arrow files")
      ->capture_default_str();
  command.add_option(
      "--document-separator",
      arguments.separator,
      "Text between documents of a .txt file, \\n and \\t understood "
      "[none: a file is one document]");
  command
      .add_option(
          "--format",
          arguments.format,
          "What the files are; auto: by name, or else by content")
      ->check(one_of(names_with_auto<TextFormat>()))
      ->capture_default_str();
  command.add_option("--encoding", arguments.encoding, "Of the text")
      ->check(one_of(choice_texts<TextEncoding>()))
      ->capture_default_str();
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto arguments = std::make_shared<PrepareArguments>();
  CLI::App* command = app.add_subcommand(
      "prepare",
      "Turn text into a dataset of tokens (Megatron's PREFIX.bin and .idx)");
  CLI::Option* input = command->add_option(
      "-i,--input",
      arguments->inputs,
      "Files or folders: .txt (one document each) and .jsonl (one document "
      "per line), plain, .gz or .zst; .parquet and .arrow (one document "
      "per row); .json of a list (one document per element); - is standard "
      "input");
  command
      ->add_option("-o,--out", arguments->out, "PREFIX of the files to write")
      ->required();
  auto* tokenizer = command->add_option(
      "-t,--tokenizer",
      arguments->options.tokenizer,
      "\"bytes\", a tokenizer.json, a SentencePiece .model, or a folder with "
      "one of them");
  command
      ->add_option(
          "--train-tokenizer",
          arguments->options.train_vocab_size,
          "Train a SentencePiece tokenizer with so many tokens on the text")
      ->check(at_least(1))
      ->excludes(tokenizer);
  const CLI::Option* prepend_bos = command->add_flag(
      "--prepend-bos,!--no-prepend-bos",
      arguments->prepend_bos,
      "Begin each document with the tokenizer's begin-of-text token [on with "
      "--train-tokenizer]");
  command->add_flag(
      "--append-eos,!--no-append-eos",
      arguments->append_eos,
      "End each document with the tokenizer's end-of-document token [on]");
  add_text_options(*command, *arguments);
  add_chat_options(*command, arguments->chat);
  command->get_option("--chat")->excludes(input);
  command
      ->add_option(
          "--workers",
          arguments->options.num_workers,
          "Threads that tokenize; 0: one per core")
      ->check(whole_number(0, 4096))
      ->capture_default_str();
  command->add_flag(
      "--skip-bad-lines",
      arguments->skip_bad_lines,
      "Leave out lines of .jsonl that are no JSON object with the text, and "
      "rows of tables without one; count and name them");
  command->add_flag(
      "--overwrite", arguments->overwrite, "Replace a dataset that is there");
  command->callback([arguments, command, prepend_bos] {
    refuse_without(
        *command,
        {"--input"},
        {"--json-key", "--document-separator", "--format", "--encoding"});
    refuse_without(
        *command,
        {"--chat"},
        {"--chat-form",
         "--loss",
         "--template",
         "--template-name",
         "--template-variables",
         "--max-tokens",
         "--too-long",
         "--show"});
    using BeginOfDocument = PrepareOptions::BeginOfDocument;
    if (prepend_bos->count() > 0)
      arguments->options.begin_of_document = arguments->prepend_bos
                                                 ? BeginOfDocument::kPrepend
                                                 : BeginOfDocument::kNone;
    run(*arguments);
  });
}

}  // namespace brigade::cli
