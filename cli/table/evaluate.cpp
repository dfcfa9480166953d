// brigade evaluate: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

// Returns the one that does not go with --seq-length.
CLI::Option* add_dataset_options(
    CLI::App& command,
    EvaluateArguments& arguments) {
  CLI::Option* dataset = command.add_option(
      "--dataset",
      arguments.dataset,
      "Token files, as dataset.name; of pairs, how often the chosen answer is "
      "the likelier one");
  dataset->type_name("PREFIX");
  CLI::Option* reference = command.add_flag(
      "--write-reference",
      arguments.writes_reference,
      "Keep what the model says of a dataset of pairs beside it, in "
      "PREFIX.reference.json, as the reference of training.loss \"dpo\"");
  reference->needs(dataset);
  CLI::Option* top_k = command.add_option(
      "--top-k",
      arguments.top_k,
      "Write the likeliest tokens in the place of each of the dataset's, with "
      "their log-probabilities, as dataset.teacher of training.loss "
      "\"distill\"");
  top_k->type_name("FILE")->needs(dataset)->excludes(reference);
  command.add_option("--k", arguments.k, "Of --top-k, how many for each")
      ->check(at_least(1))
      ->capture_default_str()
      ->needs(top_k);
  CLI::Option* by_document = command.add_flag(
      "--by-document",
      arguments.by_document,
      "Read each document by itself, as with dataset.packing (without "
      "--top-k the default where the dataset has a mask); otherwise windows of "
      "--seq-length, as training.seq_length");
  by_document->needs(dataset);
  return by_document;
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto arguments = std::make_shared<EvaluateArguments>();
  CLI::App* command = app.add_subcommand(
      "evaluate", "Loss, perplexity and tasks of a trained model");
  add_model_options(*command, arguments->model, "-c,--checkpoint");
  command->add_option("--text", arguments->text, "A text file")
      ->type_name("FILE");
  CLI::Option* by_document = add_dataset_options(*command, *arguments);
  CLI::Option* task = command->add_option(
      "--task",
      arguments->tasks,
      "JSON lines of {context, choices, gold} or of {text}; several files");
  task->type_name("FILE");
  command
      ->add_option(
          "--tokenizer",
          arguments->tokenizer,
          "bytes, tokenizer.json, a .model or a folder (default: the model's)")
      ->type_name("SPEC");
  command
      ->add_option(
          "--seq-length",
          arguments->seq_length,
          "Tokens of a window (default: the model's positions, at most 2048 "
          "but in tasks)")
      ->check(at_least(1))
      ->excludes(by_document);
  command
      ->add_option(
          "--max-tokens",
          arguments->most_tokens,
          "Of the text or the dataset, from its beginning (default: all)")
      ->check(at_least(1));
  command->add_option("--batch", arguments->rows, "Windows at a time")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--json", arguments->as_json, "Print JSON");
  command
      ->add_option(
          "--scores",
          arguments->scores,
          "Write each request's log-likelihoods, one line of JSON each")
      ->type_name("FILE")
      ->needs(task);
  add_dtype(*command, arguments->layout);
  add_rank_arguments(*command, arguments->layout);
  command->footer(
      "Example: brigade evaluate --run runs/run --text held_out.txt --nproc 2 "
      "distributed.tp_size=2");
  command->callback([arguments, command] {
    check_run(*command, arguments->model.path);
    refuse_without(*command, {"--text", "--task"}, {"--tokenizer"});
    refuse_without(
        *command, {"--text", "--dataset"}, {"--batch", "--max-tokens"});
    arguments->gives_rows = command->count("--batch") > 0;
    evaluate(*arguments);
  });
}

}  // namespace brigade::cli
