// brigade prepare and brigade inspect, as a user types them.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "brigade/base/error.h"
#include "tests/cli/program.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DataCommandsTest : public ProgramTest {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  int run(const std::vector<std::string>& arguments) const {
    return exit_code(start(arguments));
  }
  std::string prefix() const { return folder_ / "x"; }
};

constexpr int kOk = static_cast<int>(ExitCode::kOk);
constexpr int kConfig = static_cast<int>(ExitCode::kConfig);
constexpr int kData = static_cast<int>(ExitCode::kData);

TEST_F(DataCommandsTest, PrepareTellsWhatItWroteAndInspectShowsIt) {
  const std::string text = write("a.jsonl", "{\"body\": \"fire!\"}\n");
  ASSERT_EQ(
      run(
          {"prepare",
           "--input",
           text,
           "--out",
           prefix(),
           "--tokenizer",
           "bytes",
           "--json-key",
           "body"}),
      kOk)
      << err();
  // No progress bar, since the output is a pipe.
  EXPECT_EQ(err(), "");
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("6 (uint16"),
          HasSubstr("x.bin"),
          HasSubstr("brigade train")));
  ASSERT_EQ(run({"inspect", prefix() + ".idx"}), kOk) << err();
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("Megatron"),
          HasSubstr("6 (uint16, ids 33 to 257)"),
          HasSubstr("\"fire!<eos>\""),
          HasSubstr("a.jsonl")));
  ASSERT_EQ(run({"inspect", prefix(), "--document", "0"}), kOk) << err();
  EXPECT_THAT(out(), HasSubstr("fire!"));
}

TEST_F(DataCommandsTest, AFileOfTheDatasetStandsForItsPrefix) {
  const std::string text = write("a.txt", "ab");
  for (const char* extension : {".bin", ".idx"}) {
    ASSERT_EQ(
        run(
            {"prepare",
             "-i",
             text,
             "-o",
             prefix() + extension,
             "-t",
             "bytes",
             "--overwrite"}),
        kOk)
        << err();
    EXPECT_THAT(out(), HasSubstr("dataset.name=" + prefix() + "\n"));
    EXPECT_EQ(run({"inspect", prefix()}), kOk) << err();
  }
  EXPECT_FALSE(std::filesystem::exists(prefix() + ".bin.bin"));
  EXPECT_EQ(
      run({"prepare", "-i", text, "-o", prefix() + ".npy", "-t", "bytes"}),
      kConfig);
  EXPECT_THAT(err(), HasSubstr("give the PREFIX"));
}

TEST_F(DataCommandsTest, OptionsThatDoNothingAreRefusedTogether) {
  using Words = std::vector<std::string>;
  struct Case {
    Words command;
    Words options;  // with their values
    std::string mode;
  };
  const Words out = {"--out", prefix(), "--tokenizer", "bytes"};
  const std::vector<Case> cases = {
      {{"prepare", "--input", "a.txt"},
       {"--chat-form",
        "text",
        "--loss",
        "all",
        "--template-name",
        "x",
        "--template-variables",
        "{}",
        "--max-tokens",
        "9",
        "--too-long",
        "cut",
        "--show",
        "1"},
       "--chat"},
      {{"prepare", "--input", "a.txt"}, {"--template", "t.jinja"}, "--chat"},
      {{"prepare", "--chat", "a.jsonl"},
       {"--json-key",
        "x",
        "--document-separator",
        "x",
        "--format",
        "jsonl",
        "--encoding",
        "latin1"},
       "--input"},
      {{"evaluate", "--run", "r", "--task", "t.jsonl"},
       {"--batch", "2", "--max-tokens", "9"},
       "--text or --dataset"},
      {{"evaluate", "--run", "r", "--dataset", "d"},
       {"--tokenizer", "bytes"},
       "--text or --task"}};
  for (const Case& each : cases) {
    Words words = each.command;
    if (words.front() == "prepare")
      words.insert(words.end(), out.begin(), out.end());
    words.insert(words.end(), each.options.begin(), each.options.end());
    EXPECT_EQ(run(words), kConfig);
    for (size_t i = 0; i < each.options.size(); i += 2)
      EXPECT_THAT(
          err(),
          HasSubstr(
              "[" + each.command.front() + "] " + each.options[i] +
              " does nothing without " + each.mode + "; leave it out"));
  }
}

TEST_F(DataCommandsTest, OptionsThatDoNotGoTogetherAreRefused) {
  const auto complaint = [&](const std::vector<std::string>& words) {
    EXPECT_EQ(run(words), kConfig);
    return err();
  };
  EXPECT_THAT(
      complaint({"prepare", "--input", "a", "--chat", "b", "--out", "c"}),
      HasSubstr("--input excludes --chat;"));
  EXPECT_THAT(
      complaint(
          {"chat", "--run", "r", "--template", "t", "--template-name", "n"}),
      HasSubstr("--template excludes --template-name;"));
  EXPECT_THAT(
      complaint({"plan", "--explain", "dp2", "--zero", "1"}),
      HasSubstr("--zero excludes --explain;"));
  EXPECT_THAT(
      complaint({"plan", "--explain", "dp2", "--top", "1"}),
      HasSubstr("--top excludes --explain;"));
  EXPECT_THAT(
      complaint({"plan", "--calibrate", "--gpus", "2"}),
      HasSubstr("--gpus excludes --calibrate;"));
}

TEST_F(DataCommandsTest, BadInputHasTheExitCodeOfItsKindAndLeavesNothing) {
  const std::string bad = write("bad.txt", "ab\n\xFFz");
  EXPECT_EQ(run({"prepare", "-i", bad, "-o", prefix(), "-t", "bytes"}), kData);
  EXPECT_THAT(err(), HasSubstr("bad.txt] at byte 3, line 2"));
  EXPECT_FALSE(std::filesystem::exists(prefix() + ".bin"));
  EXPECT_EQ(
      run({"prepare", "-i", prefix() + ".txt", "-o", prefix(), "-t", "bytes"}),
      kData);
  EXPECT_THAT(err(), HasSubstr("does not exist"));
  const std::string good = write("good.txt", "good");
  EXPECT_EQ(run({"prepare", "-i", good, "-o", prefix()}), kConfig);
  EXPECT_THAT(err(), HasSubstr("--tokenizer"));
  EXPECT_EQ(run({"prepare", "-i", good, "-o", prefix(), "-t", "bytes"}), kOk);
  EXPECT_EQ(
      run({"prepare", "-i", good, "-o", prefix(), "-t", "bytes"}), kConfig);
  EXPECT_THAT(err(), HasSubstr("--overwrite"));
  EXPECT_EQ(run({"inspect", folder_ / "absent"}), kData);
  const std::string other = write("x.pdf", "%PDF");
  EXPECT_EQ(run({"inspect", other}), kData);
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("x.pdf' is none of the files"),
          ::testing::Not(HasSubstr("x.pdf.idx"))));
}

TEST_F(DataCommandsTest, ALoopOfLinksIsNamedAsWrongInput) {
  const std::string loop = folder_ / "a";
  std::filesystem::create_symlink("b", folder_ / "a");
  std::filesystem::create_symlink("a", folder_ / "b");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", loop},
        {"report", loop},
        {"evaluate", "--run", loop, "--text", "-"}}) {
    EXPECT_EQ(run(command), kData) << command[0];
    EXPECT_THAT(
        err(), HasSubstr("Too many levels of symbolic links: '" + loop + "'"));
  }
}

TEST_F(DataCommandsTest, AVocabularyThatDoesNotSuitTheTextSaysWhatWould) {
  const std::string text = write("t.txt", "hello world\n");
  const auto train = [&](const char* size) {
    return run(
        {"prepare", "-i", text, "-o", prefix(), "--train-tokenizer", size});
  };
  EXPECT_EQ(train("100000"), kConfig);
  EXPECT_THAT(err(), ::testing::ContainsRegex("at most [0-9]+ can be made"));
  EXPECT_EQ(train("260"), kConfig);
  EXPECT_THAT(err(), ::testing::ContainsRegex("alone need [0-9]+"));
  EXPECT_THAT(err(), ::testing::Not(HasSubstr(".cc(")));
}

TEST_F(DataCommandsTest, APrepareKilledWith9LeavesNoDatasetAndStartsOver) {
  // The pipe is not closed, so the program is still reading.
  const std::string pipe = folder_ / "pipe.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::string> command = {
      "prepare", "-i", pipe, "-o", prefix(), "-t", "bytes"};
  const pid_t pid = start(command);
  {
    std::ofstream input(pipe);
    input << std::string(4 << 20, 'a') << std::flush;
    ::kill(pid, SIGKILL);
    EXPECT_EQ(exit_code(pid), 128 + SIGKILL);
  }
  EXPECT_NE(run({"inspect", prefix()}), kOk);
  EXPECT_FALSE(std::filesystem::exists(prefix() + ".idx"));

  std::filesystem::remove(pipe);
  write("pipe.txt", "again");
  ASSERT_EQ(run(command), kOk) << err();
  EXPECT_EQ(run({"inspect", prefix()}), kOk);
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename(), ::testing::Not(HasSubstr("tmp-")));
}

TEST_F(DataCommandsTest, APrepareThatASignalEndsLeavesNothing) {
  const std::string pipe = folder_ / "pipe.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const pid_t pid =
      start({"prepare", "-i", pipe, "-o", prefix(), "-t", "bytes"});
  {
    // Once a pipe's reader is there, so are the files.
    std::ofstream input(pipe);
    input << std::string(4 << 20, 'a') << std::flush;
    ::kill(pid, SIGTERM);
    EXPECT_EQ(exit_code(pid), 128 + SIGTERM);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_THAT(
        entry.path().filename().string(),
        ::testing::Not(::testing::StartsWith("x.")));
}

TEST_F(DataCommandsTest, AFolderWithoutTextCountsWhatItHolds) {
  std::filesystem::create_directory(folder_ / "in");
  write("in/a.pdf", "%PDF");
  const std::vector<std::string> command = {
      "prepare", "-i", folder_ / "in", "-o", prefix(), "-t", "bytes"};
  EXPECT_EQ(run(command), kData);
  EXPECT_THAT(err(), HasSubstr("skipped are 1 other file(s), such as '"));
  write("in/B.TXT", "text");
  EXPECT_EQ(run(command), kOk) << err();
}

TEST_F(DataCommandsTest, TheFirstBadLineIsNamed) {
  const std::string bad = write("bad.jsonl", "{\"text\": 1}\n\xFF\n");
  EXPECT_EQ(run({"prepare", "-i", bad, "-o", prefix(), "-t", "bytes"}), kData);
  EXPECT_THAT(err(), HasSubstr("line 1: there is no string in 'text'"));
}

TEST_F(DataCommandsTest, InspectSummarisesAModelsConfig) {
  const std::string config = write(
      "config.json",
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 256,
          "tie_word_embeddings": false})");
  ASSERT_EQ(run({"inspect", config}), kOk) << err();
  // 2 * 256 * 64 embeddings and head, a layer of 4 * 64 * 64 + 3 * 64 * 128
  // + 2 * 64, the last norm of 64.
  EXPECT_THAT(
      out(), AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("115,008")));
}

TEST_F(DataCommandsTest, InspectSpeaksOfThePathThatWasGiven) {
  const std::string page = write("x.pdf", "%PDF");
  EXPECT_EQ(run({"inspect", page}), kData);
  EXPECT_THAT(err(), HasSubstr("x.pdf' is none of the files"));
  EXPECT_EQ(run({"inspect", folder_ / "none.pdf"}), kData);
  EXPECT_THAT(err(), HasSubstr("none.pdf' does not exist"));
  EXPECT_THAT(err(), ::testing::Not(HasSubstr("pdf.idx")));
}

TEST_F(DataCommandsTest, AFileThatIsNoSentencePieceModelIsNamedInPlainWords) {
  const std::string text = write("a.txt", "fire");
  const std::string model = write("a.model", "garbage");
  EXPECT_EQ(run({"prepare", "-i", text, "-o", prefix(), "-t", model}), kData);
  EXPECT_THAT(
      err(), HasSubstr("a.model: not a usable SentencePiece model: its"));
  EXPECT_THAT(err(), ::testing::Not(HasSubstr("ParseFrom")));
}

TEST_F(DataCommandsTest, ANumberThatIsTooSmallSaysTheLeast) {
  EXPECT_EQ(
      run({"prepare", "-i", "a", "-o", "b", "--train-tokenizer", "-3"}),
      kConfig);
  EXPECT_THAT(
      err(),
      HasSubstr("--train-tokenizer: expected a whole number >= 1, not '-3'"));
}

TEST_F(DataCommandsTest, InspectNamesThePlaceOfAProblemInJson) {
  const std::string broken = write("broken.json", "{\"a\":\n 1 2}");
  EXPECT_EQ(run({"inspect", broken}), kData);
  EXPECT_THAT(err(), HasSubstr("broken.json:2:4: not valid JSON, at /a: "));
  const std::string config = write("config.json", R"({"hidden_size": -1})");
  EXPECT_EQ(run({"inspect", config}), kData);
  EXPECT_THAT(err(), HasSubstr("config.json: /hidden_size: -1 is not"));
}

TEST_F(DataCommandsTest, LibcurlIsLoadedForDownloadsAlone) {
  ASSERT_EQ(
      exit_code(start_program("env", {"LD_TRACE_LOADED_OBJECTS=1", kProgram})),
      0);
  EXPECT_THAT(out(), AllOf(HasSubstr("libc.so"), Not(HasSubstr("libcurl"))));
}

TEST_F(DataCommandsTest, OfflineIsWhatHuggingFacesHubTakesForTrue) {
  write("libcurl.so.4", "no library");
  const auto downloads = [&](const std::string& variable) {
    const int code = exit_code(start_program(
        "env",
        {"-u",
         "HF_HUB_OFFLINE",
         "-u",
         "TRANSFORMERS_OFFLINE",
         "LD_LIBRARY_PATH=" + folder_.string(),
         "HF_HUB_CACHE=" + folder_.string(),
         "HF_ENDPOINT=http://127.0.0.1:1",
         variable,
         kProgram,
         "create-config",
         "--download",
         "--out_dir",
         (folder_ / variable).string(),
         "--model_name",
         "someone/model"}));
    EXPECT_THAT(
        out() + err(),
        code == 0 ? HasSubstr("TRANSFORMERS_OFFLINE) forbids to download")
                  : HasSubstr("cannot load libcurl"));
    return code != 0;
  };
  for (const char* value : {"1", "true", "True", "TRUE", "yes", "On"}) {
    EXPECT_FALSE(downloads(std::string("HF_HUB_OFFLINE=") + value)) << value;
    EXPECT_FALSE(downloads(std::string("TRANSFORMERS_OFFLINE=") + value));
  }
  for (const char* value : {"0", "no", "2", ""})
    EXPECT_TRUE(downloads(std::string("HF_HUB_OFFLINE=") + value)) << value;
}

TEST_F(DataCommandsTest, ALibcurlThatDoesNotLoadIsNamedWithItsPackage) {
  write("libcurl.so.4", "no library");
  EXPECT_EQ(
      exit_code(start_program(
          "env",
          {"LD_LIBRARY_PATH=" + folder_.string(),
           "HF_HUB_CACHE=" + folder_.string(),
           "HF_HUB_OFFLINE=0",
           "HF_ENDPOINT=http://127.0.0.1:1",
           kProgram,
           "create-config",
           "--download",
           "--out_dir",
           folder_.string(),
           "--model_name",
           "someone/model"})),
      static_cast<int>(ExitCode::kUnexpected));
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("[hub] cannot load libcurl.so.4, which downloads need"),
          HasSubstr("install the package libcurl4")));
}

}  // namespace
}  // namespace brigade
