// Manual pages and completions, read by man and the shells themselves; command
// lines that are only checked start quickly.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "brigade/files/file.h"
#include "program.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

bool is_installed(const char* program) {
  return std::system(
             fmt::format("command -v {} >/dev/null 2>&1", program).c_str()) ==
         0;
}

class ShellHelp : public ProgramTest {
 protected:
  // The output of a shell command, with $B the program and $T the folder.
  std::string output_of(const std::string& command) {
    ::setenv("B", kProgram, 1);
    std::filesystem::remove(folder_ / "out");
    EXPECT_EQ(exit_code(start_program("bash", {"-c", command})), 0) << err();
    return out();
  }

  // The completions that bash offers for the last word of a line.
  std::string bash_offers(const std::string& line) {
    return output_of(
        "source <($B completion bash); COMP_WORDS=(" + line + "); [[ '" + line +
        "' == *' ' ]] && COMP_WORDS+=(''); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
        "_brigade brigade \"${COMP_WORDS[COMP_CWORD]}\" "
        "\"${COMP_WORDS[COMP_CWORD-1]}\"; "
        "printf '%s\\n' \"${COMPREPLY[@]}\"");
  }
};

TEST_F(ShellHelp, ManPagesHaveEveryOptionAndNoWarnings) {
  if (!is_installed("groff") && !is_installed("man"))
    GTEST_SKIP() << "man is not installed";
  ASSERT_EQ(exit_code(start({"man", "--folder", folder_.string()})), 0);
  const auto pages = folder_ / "man1";
  EXPECT_GT(
      std::distance(
          std::filesystem::directory_iterator(pages),
          std::filesystem::directory_iterator()),
      15);
  const std::string shown = output_of(
      "for page in $T/man1/*.1; do MANWIDTH=500 man --warnings -P cat -l $page "
      "2>>$T/warnings || exit 1; done");
  EXPECT_EQ(read_if_there(folder_ / "warnings"), "");
  EXPECT_THAT(
      shown,
      AllOf(
          HasSubstr("brigade-train - Train the model"),
          HasSubstr("--max-restarts K"),
          HasSubstr("--keep-last"),
          HasSubstr("-p, --prompt TEXT"),
          HasSubstr("bash|zsh|fish")));
}

TEST_F(ShellHelp, BashCompletesCommandsOptionsValuesAndKeys) {
  EXPECT_THAT(bash_offers("brigade tra"), "train\n");
  EXPECT_THAT(bash_offers("brigade train --max"), "--max-restarts\n");
  EXPECT_THAT(
      bash_offers("brigade train distributed.tp"), "distributed.tp_size=\n");
  EXPECT_THAT(bash_offers("brigade prepare --format j"), "jsonl\n");
  EXPECT_THAT(bash_offers("brigade checkpoint ver"), "verify\n");
  EXPECT_THAT(
      bash_offers("brigade checkpoint prune --keep-l"), "--keep-last\n");
  EXPECT_THAT(
      bash_offers("brigade "),
      AllOf(HasSubstr("report\n"), HasSubstr("man\n")));
}

// A completion must not replace a function that the user's bash has.
TEST_F(ShellHelp, BashGetsNoFunctionOfAnothersName) {
  EXPECT_THAT(
      output_of("source <($B completion bash); COMP_WORDS=(brigade tra); "
                "COMP_CWORD=1;"
                " _brigade brigade tra brigade; compgen -A function | sort"),
      "_brigade\n_brigade_files\n_brigade_words\n");
}

TEST_F(ShellHelp, FishCompletesThemToo) {
  if (!is_installed("fish"))
    GTEST_SKIP() << "fish is not installed";
  const auto offers = [&](const std::string& line) {
    return output_of(fmt::format(
        "$B completion fish >$T/c.fish; fish --no-config -c "
        "\"source $T/c.fish; complete -C '{}'\"",
        line));
  };
  EXPECT_THAT(offers("brigade tra"), HasSubstr("train\tTrain the model"));
  EXPECT_THAT(offers("brigade train --max"), HasSubstr("--max-restarts"));
  EXPECT_THAT(offers("brigade prepare --format "), HasSubstr("jsonl"));
  EXPECT_THAT(
      offers("brigade train distributed.tp"),
      HasSubstr("distributed.tp_size="));
}

TEST_F(ShellHelp, ZshReadsItsCompletion) {
  if (!is_installed("zsh"))
    GTEST_SKIP() << "zsh is not installed";
  // Presses Tab in a terminal of its own, then makes the line a comment and
  // ends it.
  const std::string shown = output_of(R"(
mkdir -p $T/zsh; $B completion zsh >$T/zsh/_brigade; cat >$T/drive.zsh <<'END'
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1='> '; fpath=($T/zsh \$fpath); autoload -U compinit; compinit -u -D; bindkey '^I' complete-word; print REA''DY"
zpty -r -m z line '*READY*> *'
for typed in 'brigade train --max-res' 'brigade tra' 'brigade prepare --format j'; do
  zpty -w -n z "$typed"$'\t\C-a: \C-e END\n'
  zpty -r -m z line '*END*> *'
  print -r -- $line
done
zpty -d z
END
TERM=dumb zsh -f $T/drive.zsh)");
  EXPECT_THAT(
      shown,
      AllOf(
          HasSubstr("brigade train --max-restarts"),
          HasSubstr(": brigade train"),
          HasSubstr("--format jsonl")));
}

// Runs without a brigade-torch to hand over to.
TEST_F(ShellHelp, CommandLinesThatAreOnlyReadAndDryRunsTakeNoLibtorch) {
  EXPECT_THAT(output_of("ldd $B"), Not(HasSubstr("libtorch")));
  const std::string alone = (folder_ / "brigade").string();
  std::filesystem::copy_file(kProgram, alone);
  struct Line {
    std::vector<std::string> arguments;
    int exit_code;
  };
  const std::string text = (folder_ / "a.txt").string();
  write_text_file(text, std::string(1 << 16, 'a'));
  const std::string data = (folder_ / "data").string();
  const auto quickstart = [](const std::vector<std::string>& more) {
    std::vector<std::string> line = {
        "train",
        "--config",
        BRIGADE_SOURCE_DIR "/examples/quickstart.json",
        "--nproc",
        "2",
        "distributed.use_cpu=true"};
    line.insert(line.end(), more.begin(), more.end());
    return line;
  };
  const std::vector<Line> lines = {
      {{"tarin"}, 2},
      {{"train", "--nprok", "2"}, 2},
      {{"train", "--config", "/nowhere.json"}, 2},
      {quickstart({"--print-config", "--print-schedule"}), 0},
      {{"prepare", "--input", text, "--tokenizer", "bytes", "--out", data}, 0},
      {quickstart({"dataset.name=" + data, "--dry-run"}), 0},
      {{"--help"}, 0},
      {{"train", "--help"}, 0},
      {{"--version"}, 0}};
  for (const Line& line : lines)
    EXPECT_EQ(exit_code(start_program(alone, line.arguments)), line.exit_code)
        << line.arguments.back() << err();
  EXPECT_EQ(exit_code(start_program(alone, {"inspect", "bytes"})), 1);
  EXPECT_THAT(err(), HasSubstr("the installation is not complete"));
  // A brigade-torch that cannot be executed is named.
  write_text_file(folder_ / "brigade-torch", "");
  EXPECT_EQ(
      exit_code(start_program(
          alone,
          quickstart(
              {"dataset.name=" + data,
               "logging.run_dir=" + (folder_ / "run").string()}))),
      1);
  EXPECT_THAT(
      err(),
      HasSubstr(
          "cannot start '" + std::filesystem::canonical(alone).string() +
          "-torch'"));
}

}  // namespace
}  // namespace brigade
