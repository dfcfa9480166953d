// brigade chat: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/sampling_options.h"
#include "cli/template_options.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_chat(CLI::App& app) {
  auto arguments = std::make_shared<ChatSessionArguments>();
  arguments->text.max_tokens = 512;
  CLI::App* command =
      app.add_subcommand("chat", "Talk with a model, on one rank");
  add_model_options(*command, arguments->text.model, "");
  command->add_option("--system", arguments->system, "The system prompt");
  add_template_options(*command, arguments->chat_template);
  add_tokenizer_option(*command, arguments->text);
  add_sampling_options(*command, arguments->text);
  add_dtype(*command, arguments->layout);
  command->footer(
      "On a terminal: /reset forgets the conversation, /exit or Ctrl-D ends, "
      "Ctrl-C stops an answer.\nElse standard input is one message, and "
      "standard output the answer.\n"
      "Example: brigade chat --run runs/run --system 'Answer in one line.'\n"
      "         echo 'What is a bug?' | brigade chat --run runs/run");
  command->callback([arguments, command] {
    check_run(*command, arguments->text.model.path);
    chat(*arguments);
  });
}

}  // namespace brigade::cli
