// brigade chat --run DIR
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/data/whole_text.h"
#include "brigade/generate/chat_session.h"
#include "brigade/generate/inference_config.h"
#include "brigade/model_spec/model_warnings.h"
#include "brigade/train/start_world.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/standard_streams.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

volatile std::sig_atomic_t interrupted = 0;
// Readable once Ctrl-C was noted, whichever thread the signal came to.
int interrupt_event = -1;

void note_interrupt(int /*signal*/) {
  const int error = errno;
  interrupted = 1;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      ::write(interrupt_event, &one, sizeof(one));
  errno = error;
}

// While it lives, Ctrl-C is only noted, and ends a wait for input.
class InterruptsNoted {
 public:
  InterruptsNoted() {
    interrupt_event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    ::sigaction(SIGINT, &action, &before_);
  }
  ~InterruptsNoted() {
    ::sigaction(SIGINT, &before_, nullptr);
    ::close(interrupt_event);
  }
  InterruptsNoted(const InterruptsNoted&) = delete;
  InterruptsNoted& operator=(const InterruptsNoted&) = delete;

 private:
  struct sigaction before_ {};
};

void forget_interrupts() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read =
      ::read(interrupt_event, &count, sizeof(count));
  interrupted = 0;
}

enum class Input { kLineOrEnd, kInterrupt, kFailed };

// Until there is a line, which a terminal gives whole, or Ctrl-C was noted; of
// both the line is taken.
Input wait_for_input() {
  std::array<pollfd, 2> waits{
      {{STDIN_FILENO, POLLIN, 0}, {interrupt_event, POLLIN, 0}}};
  while (::poll(waits.data(), waits.size(), -1) < 0) {
    if (errno != EINTR)
      return Input::kFailed;
  }
  return waits[0].revents != 0 ? Input::kLineOrEnd : Input::kInterrupt;
}

// Writes what stands in front of a line and reads it, without its end;
// std::nullopt at the end of input. Ctrl-C begins the line again.
std::optional<std::string> read_line(const char* prompt) {
  for (;;) {
    forget_interrupts();
    fmt::print("{}", prompt);
    std::fflush(stdout);
    const Input input = wait_for_input();
    char* text = nullptr;
    size_t room = 0;
    const ssize_t length =
        input == Input::kLineOrEnd ? ::getline(&text, &room, stdin) : -1;
    const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
    if (length >= 0) {
      std::string line(text, static_cast<size_t>(length));
      if (line.ends_with('\n'))
        line.pop_back();
      return line;
    }
    fmt::print("\n");
    if (input != Input::kInterrupt && interrupted == 0)
      return std::nullopt;
    std::clearerr(stdin);
  }
}

void say(std::string_view piece) {
  fmt::print("{}", piece);
  std::fflush(stdout);
}

// What is to be known of an answer beside its text; "": nothing.
std::string remark_on(const ChatAnswer& answer, const ChatSession& session) {
  std::string remark;
  if (answer.dropped_turns > 0)
    remark = fmt::format(
        "[the model has {} positions: the {} oldest turn(s) are forgotten]\n",
        session.positions(),
        answer.dropped_turns);
  switch (answer.end) {
    case ChatAnswer::End::kEndToken:
      return remark;
    case ChatAnswer::End::kMaxTokens:
      return remark +
             fmt::format(
                 "[cut after --max-tokens {}]\n", answer.generated_tokens);
    case ChatAnswer::End::kPositions:
      return remark +
             fmt::format(
                 "[cut: the model has {} positions, and all are used]\n",
                 session.positions());
    case ChatAnswer::End::kStopped:
      return remark + "[stopped]\n";
  }
  return remark;
}

void talk(ChatSession& session) {
  note(
      "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an "
      "answer\n");
  const InterruptsNoted noted;
  while (const auto line = read_line("> ")) {
    if (*line == "/exit")
      return;
    if (*line == "/reset") {
      session.reset();
      note("[a new conversation]\n");
      continue;
    }
    if (line->find_first_not_of(" \t\r") == std::string::npos)
      continue;
    try {
      require_utf8(*line);
      const ChatAnswer answer =
          session.answer(*line, say, [] { return interrupted != 0; });
      say("\n");
      note("{}", remark_on(answer, session));
    } catch (const DataError& error) {
      note("error: {}\n", error.what());
    }
  }
}

// All of standard input, without the end of its last line.
std::string read_message() {
  std::string message = read_whole_text("-");
  if (message.ends_with('\n'))
    message.pop_back();
  if (message.ends_with('\r'))
    message.pop_back();
  if (message.empty())
    throw DataError("[chat] standard input holds no message");
  return message;
}

ChatSessionOptions session_options(const ChatSessionArguments& arguments) {
  const size_t valid = valid_utf8_prefix(arguments.system);
  if (valid < arguments.system.size())
    throw ConfigError(fmt::format(
        "--system: byte {} is not UTF-8; convert the text, for example with "
        "iconv",
        valid));
  check_values(arguments.text);
  ChatSessionOptions options;
  options.text = arguments.text;
  options.system = arguments.system;
  options.template_file = arguments.chat_template.file;
  options.template_name = arguments.chat_template.name;
  options.variables = template_variables(arguments.chat_template);
  options.now = std::time(nullptr);
  return options;
}

}  // namespace

void chat(const ChatSessionArguments& arguments) {
  const Launch launch = read_launch(std::nullopt);
  if (launch.world_size > 1)
    throw ConfigError(fmt::format(
        "[chat] one process talks; {} were started. generate and evaluate "
        "work on several ranks",
        launch.world_size));
  share_out_threads(launch.environment, std::nullopt);
  const ChatSessionOptions options = session_options(arguments);
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  const std::string message = is_terminal ? "" : read_message();
  const StoredModel stored(options.text.model);
  const TrainConfig config =
      inference_config(stored, config_overrides(arguments.layout), 1);
  const auto mesh = start_world(config, launch.environment);
  RateBar bar(
      is_terminal ? visible_on_stderr(launch.environment)
                  : ProgressBar::Visible::kNo);
  stored.verify(*mesh->world(), bar.labelled("verifying the checkpoint"));
  bar.clear();
  for (const std::string& warning : model_warnings(stored.config()))
    note("warning: {}\n", warning);
  ChatSession session(stored, options, config, *mesh);
  if (is_terminal) {
    talk(session);
    return;
  }
  const ChatAnswer answer = session.answer(message, say);
  say("\n");
  note("{}", remark_on(answer, session));
}

}  // namespace brigade::cli
