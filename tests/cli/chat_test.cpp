// brigade chat as people use it: one message through a pipe, or a conversation
// on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "every_command.h"
#include "tests/support/become.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A program on its own pseudo-terminal.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments) {
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ == 0)
      testing::become(kProgram, arguments);
  }
  ~Terminal() { ::close(terminal_); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const {
    EXPECT_EQ(
        ::write(terminal_, keys.data(), keys.size()),
        static_cast<ssize_t>(keys.size()));
  }
  // Ctrl-C must not discard typed text that was not read yet.
  void keep_unread_input() const {
    termios modes{};
    ASSERT_EQ(::tcgetattr(terminal_, &modes), 0);
    modes.c_lflag |= NOFLSH;
    ASSERT_EQ(::tcsetattr(terminal_, TCSANOW, &modes), 0);
  }
  // The output up to these words, or all of it if they never appear.
  std::string shown_until(const std::string& words) {
    std::array<char, 4096> bytes{};
    while (true) {
      const size_t found = unread_.find(words);
      if (found != std::string::npos) {
        const std::string shown = unread_.substr(0, found + words.size());
        unread_.erase(0, found + words.size());
        return shown;
      }
      const ssize_t count = ::read(terminal_, bytes.data(), bytes.size());
      if (count <= 0) {  // EIO: nobody has the terminal any more
        ADD_FAILURE() << "there is no '" << words << "' in: " << unread_;
        return unread_;
      }
      unread_.append(bytes.data(), static_cast<size_t>(count));
    }
  }
  int exit_code() {
    std::array<char, 4096> bytes{};
    while (::read(terminal_, bytes.data(), bytes.size()) > 0) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string unread_;
};

class ChatCommand : public EveryCommand {
 protected:
  std::vector<std::string> arguments(const std::string& tokens) const {
    return {
        "chat",
        "--run",
        (data_ / "model").string(),
        "--tokenizer",
        "bytes",
        "--template",
        (data_ / "t.jinja").string(),
        "--max-tokens",
        tokens};
  }
};

TEST_F(ChatCommand, APipesTextIsOneMessageAndTheOutputItsAnswer) {
  const std::string chat =
      "chat --run {D}/run --template {D}/t.jinja --max-tokens 5 --seed 3 ";
  EXPECT_EQ(run(chat, "<<< $'two\\nlines'"), 0) << err();
  const std::string answer = out();
  EXPECT_THAT(answer, AllOf(Not(IsEmpty()), Not(HasSubstr("two"))));
  // The last newline is not part of the message.
  EXPECT_EQ(run(chat, "< <(printf 'two\\nlines')"), 0) << err();
  EXPECT_EQ(out(), answer);
  EXPECT_EQ(run(chat, "<<< other"), 0);
  EXPECT_EQ(run(chat + "--system x", "<<< $'two\\nlines'"), 0) << err();
}

TEST_F(ChatCommand, ReportsWrongInputAndOptions) {
  const std::string chat = "chat --run {D}/run ";
  EXPECT_EQ(run(chat, "<<< a"), 4);
  EXPECT_THAT(
      err(),
      AllOf(HasSubstr("has no chat template"), HasSubstr("--template FILE")));
  const std::string given = chat + "--chat-template {D}/t.jinja ";
  EXPECT_EQ(run(given, "</dev/null"), 4);
  EXPECT_THAT(err(), HasSubstr("standard input holds no message"));
  EXPECT_EQ(run(given, "<&-"), 4);
  EXPECT_THAT(err(), HasSubstr("standard input is closed"));
  EXPECT_EQ(run(given + "--system $'caf\\xe9'", "<<< a"), 2);
  EXPECT_THAT(err(), HasSubstr("--system: byte 3 is not UTF-8"));
  EXPECT_EQ(run(given + "--template-variables 5", "<<< a"), 2);
  EXPECT_THAT(err(), HasSubstr("5 is not a JSON object"));
  EXPECT_EQ(run(given + "--top-p 0", "<<< a"), 2);
  EXPECT_THAT(err(), HasSubstr("--top-p 0 is not in (0, 1]"));
  EXPECT_EQ(run(given, "<<< " + std::string(100, 'a')), 4);
  EXPECT_THAT(
      err(), AllOf(HasSubstr("has 106 tokens"), HasSubstr("64 positions")));
  EXPECT_EQ(run("chat", "<<< a"), 2);
  EXPECT_THAT(err(), HasSubstr("[chat] --run DIR is missing"));
}

TEST_F(ChatCommand, AConversationIsHeldOnATerminal) {
  Terminal terminal(arguments("4"));
  terminal.shown_until("Ctrl-C stops an answer");
  terminal.shown_until("> ");
  terminal.type("a\n");
  terminal.shown_until("[cut after --max-tokens 4]");
  terminal.shown_until("> ");
  terminal.type("\n");  // no message
  terminal.shown_until("> ");
  terminal.type("/reset\n");
  terminal.shown_until("[a new conversation]");
  terminal.shown_until("> ");
  terminal.type(std::string(100, 'b') + "\n");
  terminal.shown_until("error: [chat] the message has 106 tokens");
  terminal.shown_until("> ");
  terminal.type("half a li\x03");  // Ctrl-C
  terminal.shown_until("> ");
  terminal.type("/exit\n");
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(ChatCommand, InterruptStopsTheAnswerAlone) {
  // A model whose answer is as long as this test needs.
  const fs::path model = folder_ / "model";
  fs::copy(data_ / "model", model);
  nlohmann::json config;
  std::ifstream(model / "config.json") >> config;
  config["max_position_embeddings"] = 1'000'000;
  config.erase("eos_token_id");
  std::ofstream(model / "config.json") << config;
  std::vector<std::string> endless = arguments("1000000");
  endless[2] = model.string();
  Terminal terminal(endless);
  terminal.shown_until("> ");
  terminal.keep_unread_input();
  terminal.type("a\n");
  // The typed message is echoed, perhaps before it is read.
  terminal.shown_until("a\r\n");
  terminal.type("\x03");
  terminal.shown_until("[stopped]");
  terminal.shown_until("> ");
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.exit_code(), 0);
}

}  // namespace
}  // namespace brigade
