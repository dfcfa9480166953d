#include "brigade/base/shell_word.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace brigade {
namespace {

// The text that a shell reads back.
std::string echoed(const std::string& word) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      ::popen(("printf %s " + word).c_str(), "r"), ::pclose);
  std::array<char, 256> text{};
  const size_t count = std::fread(text.data(), 1, text.size(), pipe.get());
  return {text.data(), count};
}

TEST(ShellWord, TheShellReadsBackWhatWasWritten) {
  for (const char* text :
       {"runs/run",
        "two words",
        "it's",
        "$HOME",
        "a;b",
        "*",
        "~",
        "{a,b}",
        "\\",
        "\"",
        "#",
        "",
        "50%",
        "\xff",
        "a\nb",
        "=x"}) {
    EXPECT_EQ(echoed(shell_word(text)), text);
    EXPECT_EQ(echoed(shell_quoted(text)), text);
  }
}

TEST(ShellWord, PlainTextHasNoQuotes) {
  EXPECT_EQ(shell_word("runs/my-run_2/a.json"), "runs/my-run_2/a.json");
  EXPECT_EQ(shell_word("dataset.name=data/x"), "dataset.name=data/x");
  EXPECT_EQ(shell_quoted("a"), "'a'");
}

}  // namespace
}  // namespace brigade
