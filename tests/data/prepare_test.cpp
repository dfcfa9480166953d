#include "brigade/data/prepare.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "brigade/data/megatron_writer.h"
#include "brigade/data/prepare_encode.h"
#include "brigade/data/token_dataset.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/training.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// English-like lines; the same for the same seed.
std::string some_text(uint32_t seed, size_t size) {
  static const char* kWords[] = {
      "the", "fire", "bucket", "went", "from", "hand", "to", "café", "naïve"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < size) {
    text += kWords[random() % std::size(kWords)];
    text += random() % 9 == 0 ? (random() % 5 == 0 ? "\n\n" : ".\n") : " ";
  }
  return text;
}

class PrepareTest : public DataTest {
 protected:
  PrepareOptions options(const std::filesystem::path& input) const {
    PrepareOptions result;
    result.inputs = {input};
    result.out_prefix = folder_ / "out/x";
    result.tokenizer = "bytes";
    result.num_workers = 2;
    return result;
  }
  // Names in the output folder.
  std::vector<std::string> written() const {
    std::vector<std::string> names;
    if (!std::filesystem::exists(folder_ / "out"))
      return names;
    for (const auto& e : std::filesystem::directory_iterator(folder_ / "out"))
      names.push_back(e.path().filename());
    return names;
  }
  std::vector<int64_t> tokens() const {
    const auto dataset = TokenDataset::open(folder_ / "out/x");
    std::vector<int64_t> result(dataset.num_tokens());
    dataset.read(0, result);
    return result;
  }
};

TEST_F(PrepareTest, WritesTheTokensOfEachDocumentAndItsEnd) {
  write("in/a.txt", "ab");
  write(
      "in/b.jsonl", "{\"text\": \"c\"}\n{\"text\": \"\"}\n{\"text\": \"d\"}\n");
  write("in/c.txt", "");
  const PrepareResult result = prepare(options(folder_ / "in"));
  EXPECT_THAT(tokens(), ElementsAre('a', 'b', 257, 'c', 257, 'd', 257));
  EXPECT_EQ(TokenDataset::open(folder_ / "out/x").documents().size(), 3U);
  EXPECT_EQ(result.empty_documents, 2U);
  EXPECT_EQ(result.info.num_documents, 3U);
  EXPECT_EQ(result.info.num_tokens, 7U);
  EXPECT_EQ(result.info.sources[1].documents, 2U);
  EXPECT_EQ(read_dataset_info(folder_ / "out/x"), result.info);
  EXPECT_THAT(written(), UnorderedElementsAre("x.bin", "x.idx", "x.json"));
}

TEST_F(PrepareTest, ANameByWhichTheDatasetCannotBeOpenedIsRefused) {
  auto named = options(write("a.txt", "ab"));
  for (const std::string extension : {".bin", ".idx", ".npy", ".ds"}) {
    named.out_prefix = folder_ / ("out/x" + extension);
    EXPECT_THAT(
        message_of<ConfigError>([&] { prepare(named); }),
        AllOf(
            HasSubstr("out/x" + extension + "': " + extension + " is the"),
            HasSubstr("give the PREFIX of PREFIX.bin and PREFIX.idx")));
  }
  EXPECT_THAT(written(), IsEmpty());
  named.out_prefix = folder_ / "out/x.1";
  prepare(named);
  EXPECT_EQ(TokenDataset::open(named.out_prefix).num_tokens(), 3U);
}

TEST_F(PrepareTest, TheBytesOfTheTextAreCountedNotThoseOfTheJson) {
  const PrepareResult result = prepare(options(write(
      "a.jsonl",
      "{\"id\": 123456, \"text\": \"\\u00e9\\n\"}\r\n{\"text\": \"ab\"}\n")));
  EXPECT_EQ(result.text_bytes, 5U);
  EXPECT_EQ(result.info.sources[0].text_bytes, 5U);
}

TEST_F(PrepareTest, BadLinesAreSkippedCountedAndNamedOnRequest) {
  std::string lines = "{\"text\": \"a\"}\n";
  for (int i = 0; i < 12; ++i)
    lines += "no JSON\n";
  auto prepare_options = options(write("a.jsonl", lines + "{\"text\": \"b\"}"));
  EXPECT_THAT(
      message_of<DataError>([&] { prepare(prepare_options); }),
      HasSubstr("line 2: not valid JSON: expected"));
  prepare_options.bad_lines = BadLines::kSkip;
  const PrepareResult result = prepare(prepare_options);
  EXPECT_THAT(tokens(), ElementsAre('a', 257, 'b', 257));
  EXPECT_EQ(result.bad_lines, 12U);
  ASSERT_EQ(result.first_bad_lines.size(), 10U);
  EXPECT_THAT(
      result.first_bad_lines[9],
      AllOf(HasSubstr("a.jsonl] at byte"), HasSubstr("line 11")));
}

// A tokenizer whose added tokens fill a text without white space.
TEST_F(PrepareTest, AddedTokensAreFoundAcrossCutsOfTheWork) {
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 3},
         {"content", "<|im_start|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"vocab", {{"<unk>", 0}, {"中", 1}, {"中中", 2}}},
        {"merges", {"中 中"}}}}};
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += "中中中中中中中<|im_start|>";
  auto prepare_options = options(write("a.txt", text));
  prepare_options.tokenizer = write("tokenizer.json", tokenizer.dump());
  prepare_options.end_of_document = PrepareOptions::EndOfDocument::kNone;
  prepare_options.existing = PrepareOptions::Existing::kOverwrite;
  for (const uint64_t block_bytes : {100, 1001, 50000}) {
    prepare_options.text.block_bytes = block_bytes;
    prepare(prepare_options);
    const auto found = tokens();
    EXPECT_EQ(std::count(found.begin(), found.end(), 3), 2000) << block_bytes;
    EXPECT_EQ(std::count(found.begin(), found.end(), 0), 0) << block_bytes;
  }
}

TEST_F(PrepareTest, TheEndOfDocumentTokenCanBeLeftOut) {
  auto prepare_options = options(write("a.txt", "ab"));
  prepare_options.end_of_document = PrepareOptions::EndOfDocument::kNone;
  prepare(prepare_options);
  EXPECT_THAT(tokens(), ElementsAre('a', 'b'));
}

TEST_F(PrepareTest, EachDocumentBeginsAsTheTextsOfATokenizerTrainedHere) {
  const std::string first = some_text(1, 9000);
  const std::string second = some_text(2, 50);
  write("in/a.txt", first);
  write("in/b.txt", "");
  write("in/c.txt", second);
  auto prepare_options = options(folder_ / "in");
  prepare_options.tokenizer.clear();
  prepare_options.train_vocab_size = 330;
  prepare_options.text.block_bytes = 1000;  // a document of several pieces
  EXPECT_EQ(prepare(prepare_options).info.num_documents, 2U);
  const auto info = read_dataset_info(folder_ / "out/x");
  const auto tokenizer = load_tokenizer(info->tokenizer);
  const auto expected = [&](SpecialTokens begin) {
    std::vector<int64_t> ids;
    for (const std::string& text : {first, second}) {
      for (const int32_t id :
           tokenizer->encode(text, {.special_tokens = begin}))
        ids.push_back(id);
      ids.push_back(*tokenizer->eos_id());
    }
    return ids;
  };
  const std::vector<int64_t> found = tokens();
  EXPECT_EQ(found, expected(SpecialTokens::kTemplate));
  EXPECT_EQ(found.front(), tokenizer->bos_id());

  prepare_options.existing = PrepareOptions::Existing::kOverwrite;
  prepare_options.begin_of_document = PrepareOptions::BeginOfDocument::kNone;
  prepare(prepare_options);
  EXPECT_EQ(tokens(), expected(SpecialTokens::kNone));
  // A given tokenizer begins documents as its own template asks.
  prepare_options.train_vocab_size = 0;
  prepare_options.tokenizer = (folder_ / "given").string();
  std::filesystem::copy(info->tokenizer, prepare_options.tokenizer);
  prepare_options.begin_of_document.reset();
  prepare(prepare_options);
  EXPECT_EQ(tokens(), expected(SpecialTokens::kNone));
  prepare_options.begin_of_document = PrepareOptions::BeginOfDocument::kPrepend;
  prepare(prepare_options);
  EXPECT_EQ(tokens(), expected(SpecialTokens::kTemplate));
}

TEST_F(PrepareTest, WorkersAndBlocksDoNotChangeAByte) {
  // The oracle encodes each document whole, one after the other.
  std::string lines;
  std::vector<std::string> documents;
  for (uint32_t i = 0; i < 300; ++i)
    documents.push_back(some_text(i, i * 17 % 900));
  documents[7] = some_text(7, 70000);
  for (const std::string& document : documents) {
    std::string escaped;
    for (const char c : document)
      escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
    lines += "{\"text\": \"" + escaped + "\"}\n";
  }
  const auto input = write("a.jsonl", lines);
  auto prepare_options = options(input);
  prepare_options.tokenizer.clear();
  prepare_options.train_vocab_size = 330;
  prepare(prepare_options);
  const auto info = read_dataset_info(folder_ / "out/x");
  const auto tokenizer = load_tokenizer(info->tokenizer);
  {
    MegatronWriter writer(folder_ / "expected", {.type = TokenType::kU16});
    for (const std::string& document : documents) {
      auto ids = tokenizer->encode(document);
      if (ids.empty())
        continue;
      ids.push_back(*tokenizer->eos_id());
      std::vector<std::byte> bytes;
      append_tokens(TokenType::kU16, ids, bytes);
      writer.append(bytes);
      writer.end_document();
    }
    writer.commit();
  }
  prepare_options.train_vocab_size = 0;
  prepare_options.tokenizer = (folder_ / "tokenizer").string();
  std::filesystem::copy(info->tokenizer, prepare_options.tokenizer);
  prepare_options.existing = PrepareOptions::Existing::kOverwrite;
  for (const int workers : {1, 5}) {
    for (const uint64_t block_bytes : {100, 3000, 1 << 20}) {
      prepare_options.num_workers = workers;
      prepare_options.text.block_bytes = block_bytes;
      prepare(prepare_options);
      ASSERT_EQ(
          read_bytes(folder_ / "out/x.bin"),
          read_bytes(folder_ / "expected.bin"))
          << workers << " workers, blocks of " << block_bytes;
      ASSERT_EQ(
          read_bytes(folder_ / "out/x.idx"),
          read_bytes(folder_ / "expected.idx"));
    }
  }
}

TEST_F(PrepareTest, ALongPlainFileIsTheSameDocumentInAnyBlocks) {
  const std::string text = some_text(1, 100000);
  const auto input = write("a.txt", text);
  const std::filesystem::path model = folder_ / "tokenizer.model";
  bool given = false;
  train_sentencepiece(
      [&](std::string& piece) {
        piece = text;
        return !std::exchange(given, true);
      },
      model,
      {.vocab_size = 330});
  const auto tokenizer = load_tokenizer(model.string());
  std::vector<int64_t> expected;
  for (const int32_t id : tokenizer->encode(text))
    expected.push_back(id);
  expected.push_back(*tokenizer->eos_id());
  auto prepare_options = options(input);
  prepare_options.tokenizer = model.string();
  prepare_options.existing = PrepareOptions::Existing::kOverwrite;
  for (const uint64_t block_bytes : {5000, 40000, 1 << 20}) {
    prepare_options.text.block_bytes = block_bytes;
    prepare(prepare_options);
    ASSERT_EQ(tokens(), expected) << block_bytes;
  }
}

TEST_F(PrepareTest, TheTokenizerIsCopiedBesideTheDataset) {
  auto prepare_options = options(write("a.txt", some_text(1, 20000)));
  prepare_options.tokenizer.clear();
  prepare_options.train_vocab_size = 300;
  prepare(prepare_options);
  EXPECT_THAT(
      written(),
      UnorderedElementsAre("x.bin", "x.idx", "x.json", "x.tokenizer"));
  // The dataset finds its tokenizer after both are moved.
  std::filesystem::rename(folder_ / "out", folder_ / "moved");
  const auto info = read_dataset_info(folder_ / "moved/x");
  ASSERT_TRUE(info);
  EXPECT_EQ(load_tokenizer(info->tokenizer)->vocab_size(), 300);
}

TEST_F(PrepareTest, EachStageIsReportedWhenItBegins) {
  using Stage = PrepareProgress::Stage;
  auto prepare_options = options(write("a.txt", some_text(1, 20000)));
  prepare_options.tokenizer.clear();
  prepare_options.train_vocab_size = 300;
  std::vector<Stage> stages;
  prepare_options.on_progress = [&](const PrepareProgress& progress) {
    if (stages.empty() || stages.back() != progress.stage)
      stages.push_back(progress.stage);
  };
  prepare(prepare_options);
  EXPECT_THAT(
      stages,
      ::testing::ElementsAre(
          Stage::kReadForTokenizer, Stage::kLearnTokens, Stage::kTokenize));
}

TEST_F(PrepareTest, NoTextAtAllIsAnErrorThatLeavesNothing) {
  const auto path = write("a.txt", "");
  EXPECT_THAT(
      message_of<DataError>([&] { prepare(options(path)); }),
      AllOf(HasSubstr("there is no text"), HasSubstr("a.txt")));
  EXPECT_THAT(written(), IsEmpty());
}

TEST_F(PrepareTest, InvalidTextIsAnErrorThatLeavesNothing) {
  const auto path = write("a.txt", some_text(1, 3000000) + "\xFF");
  EXPECT_THAT(
      message_of<DataError>([&] { prepare(options(path)); }),
      AllOf(HasSubstr("a.txt] at byte 3000"), HasSubstr("not UTF-8")));
  EXPECT_THAT(written(), IsEmpty());
}

TEST_F(PrepareTest, ADatasetThatExistsIsKeptUnlessToldOtherwise) {
  auto prepare_options = options(write("a.txt", "old"));
  prepare(prepare_options);
  write("a.txt", "new!");
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(prepare_options); }),
      AllOf(HasSubstr("x.idx' exists"), HasSubstr("--overwrite")));
  EXPECT_EQ(tokens().size(), 4U);
  prepare_options.existing = PrepareOptions::Existing::kOverwrite;
  prepare(prepare_options);
  EXPECT_THAT(tokens(), ElementsAre('n', 'e', 'w', '!', 257));
  // A later failure leaves the existing dataset.
  write("a.txt", "\xFF");
  EXPECT_THROW(prepare(prepare_options), DataError);
  EXPECT_EQ(tokens().size(), 5U);
}

TEST_F(PrepareTest, NoPartThatIsThereIsReplacedUnlessToldSo) {
  auto prepare_options = options(write("a.txt", "ab"));
  for (const std::string suffix :
       {".bin", ".idx", ".mask", ".reference.json"}) {
    const auto part = write("out/x" + suffix, "mine");
    EXPECT_THAT(
        message_of<ConfigError>([&] { prepare(prepare_options); }),
        AllOf(HasSubstr(part.string() + "' exists"), HasSubstr("--overwrite")));
    EXPECT_EQ(read_bytes(part), "mine");
    prepare_options.existing = PrepareOptions::Existing::kOverwrite;
    EXPECT_EQ(prepare(prepare_options).info.num_tokens, 3U);
    prepare_options.existing = PrepareOptions::Existing::kRefuse;
    std::filesystem::remove_all(folder_ / "out");
  }
}

// alpaca.json may be training data, although a dataset's description could have
// that name.
TEST_F(PrepareTest, NeverReplacesFilesThatAreNoDatasets) {
  auto prepare_options = options(write("a.txt", "ab"));
  using Existing = PrepareOptions::Existing;
  const auto message = [&](Existing existing) {
    prepare_options.existing = existing;
    return message_of<ConfigError>([&] { prepare(prepare_options); });
  };
  for (const Existing existing : {Existing::kRefuse, Existing::kOverwrite}) {
    for (const std::string text :
         {"[1]",
          "",
          "mine",
          "\"brigade-dataset\"",
          R"({"format": "mine"})",
          R"({"a": {"format": "brigade-dataset"}})",
          R"({"format": ["brigade-dataset"]})"}) {
      const auto file = write("out/x.json", text);
      EXPECT_THAT(
          message(existing),
          AllOf(HasSubstr("x.json' is there"), HasSubstr("another --out")));
      EXPECT_EQ(read_bytes(file), text);
    }
    std::filesystem::remove_all(folder_ / "out");
    // A dataset's description, in any order of members.
    write("out/x.json", R"({"eos_id": [1], "format": "brigade-dataset"})");
    const auto notes = write("out/x.tokenizer/notes.txt", "mine");
    write("out/x.tokenizer/tokenizer.json", "{}");
    EXPECT_THAT(message(existing), HasSubstr("x.tokenizer' is there"));
    EXPECT_EQ(read_bytes(notes), "mine");
    std::filesystem::remove(notes);
    std::filesystem::remove(folder_ / "out/x.json");
    EXPECT_THAT(message(existing), HasSubstr("x.tokenizer' is there"));
    std::filesystem::remove_all(folder_ / "out/x.tokenizer");
    const auto lock = write("out/x.lock", "mine");
    EXPECT_THAT(message(existing), HasSubstr("x.lock' is there"));
    EXPECT_EQ(read_bytes(lock), "mine");
    std::filesystem::remove(lock);
  }
}

TEST_F(PrepareTest, WhatItReadsIsNeverReplaced) {
  std::filesystem::create_directories(folder_ / "out/x.tokenizer.tmp-1");
  const auto message = [&](const PrepareOptions& prepare_options) {
    return message_of<ConfigError>([&] { prepare(prepare_options); });
  };
  for (const std::string suffix :
       {".bin",
        ".idx",
        ".json",
        ".mask",
        ".reference.json",
        ".bin.tmp-1",  // left by an interrupted run
        ".json.tmp-1",
        ".tokenizer.tmp-1/file"}) {
    auto itself = options(write("out/x" + suffix, "text"));
    itself.existing = PrepareOptions::Existing::kOverwrite;
    EXPECT_THAT(
        message(itself),
        AllOf(
            HasSubstr("--input '" + itself.inputs[0].string() + "' is"),
            HasSubstr("give another --out")));
    EXPECT_EQ(read_bytes(itself.inputs[0]), "text");
    std::filesystem::remove(itself.inputs[0]);
  }
  const auto text = write("a.txt", "ab");
  auto linked = options(text);
  linked.existing = PrepareOptions::Existing::kOverwrite;
  std::filesystem::create_symlink(text, folder_ / "out/x.json");
  EXPECT_THAT(message(linked), HasSubstr("a.txt' is or lies in"));
  std::filesystem::remove(folder_ / "out/x.json");
  // The tokenizer beside a dataset is protected as well, although it is a copy
  // that may be replaced.
  auto own = options(text);
  own.existing = PrepareOptions::Existing::kOverwrite;
  own.tokenizer = BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/qwen2_like.json";
  prepare(own);
  prepare(own);
  const auto copy = folder_ / "out/x.tokenizer/tokenizer.json";
  const std::string content = read_bytes(copy);
  for (const auto& tokenizer : {copy, copy.parent_path()}) {
    own.tokenizer = tokenizer;
    EXPECT_THAT(
        message(own),
        AllOf(HasSubstr("--tokenizer '"), HasSubstr("lies in '")));
  }
  EXPECT_EQ(read_bytes(copy), content);
}

// A link was in its place, to the tokenizer of an earlier dataset.
TEST_F(PrepareTest, TheTokenizerIsNamedByItsOwnPlace) {
  auto again = options(write("a.txt", "ab"));
  again.existing = PrepareOptions::Existing::kOverwrite;
  again.tokenizer =
      BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/qwen2_like.json";
  prepare(again);
  const auto copy = folder_ / "out/x.tokenizer";
  std::filesystem::rename(copy, folder_ / "store");
  std::filesystem::create_directory_symlink(folder_ / "store", copy);
  prepare(again);
  EXPECT_THAT(
      read_bytes(folder_ / "out/x.json"),
      HasSubstr(R"("tokenizer": "x.tokenizer")"));
}

TEST_F(PrepareTest, OptionsThatDoNotGoTogetherAreAllNamed) {
  PrepareOptions none;
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(none); }),
      AllOf(
          HasSubstr("--input"), HasSubstr("--out"), HasSubstr("--tokenizer")));
}

// Runs `child` in a process of its own; returns its id.
template <typename Child>
pid_t start(const Child& child) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 99;
    try {
      child();
      code = 0;
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    } catch (...) {
    }
    ::_exit(code);
  }
  return pid;
}

TEST_F(PrepareTest, LeavesNothingThatOpensWhenKilledAndStartsOver) {
  // The pipe is never closed, so prepare is still reading.
  const std::filesystem::path pipe = folder_ / "a.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child = start([&] { prepare(options(pipe)); });
  std::FILE* input = std::fopen(pipe.c_str(), "w");
  const std::string text = some_text(1, 4 << 20);
  ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), input), text.size());
  std::fflush(input);
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  std::fclose(input);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(written(), ::testing::Not(IsEmpty()));
  EXPECT_THROW(TokenDataset::open(folder_ / "out/x"), DataError);
  EXPECT_THROW(TokenDataset::open(folder_ / "out/x.bin"), DataError);

  std::filesystem::remove(pipe);
  write("a.txt", "again");
  prepare(options(pipe));
  EXPECT_EQ(tokens().size(), 6U);
  EXPECT_THAT(written(), UnorderedElementsAre("x.bin", "x.idx", "x.json"));
}

// The text under way is bounded (48 MiB, and its tokens), so memory does not
// grow with the input. All of this one and its tokens are 480 MB.
TEST_F(PrepareTest, MemoryDoesNotGrowWithTheInput) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory hides the program's";
#endif
  const std::filesystem::path pipe = folder_ / "a.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const pid_t child = start([&] { prepare(options(pipe)); });
  std::FILE* input = std::fopen(pipe.c_str(), "w");
  const std::string text = some_text(1, 1'000'000);
  for (int i = 0; i < 160; ++i)
    ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), input), text.size());
  std::fclose(input);
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  ASSERT_EQ(status, 0);
  constexpr int64_t kLimitKib = 250'000;
  EXPECT_LE(usage.ru_maxrss, kLimitKib);
  EXPECT_EQ(
      TokenDataset::open(folder_ / "out/x").num_tokens(),
      160 * text.size() + 1);
}

TEST_F(PrepareTest, AFullDiskIsAStorageErrorThatLeavesNothing) {
  const auto path = write("a.txt", some_text(1, 4 << 20));
  const pid_t child = start([&] {
    // Files of this process cannot grow past 2 MiB: write() fails as on a full
    // disk.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2 << 20, 2 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    prepare(options(path));
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kStorage));
  EXPECT_THAT(written(), IsEmpty());
}

TEST_F(PrepareTest, TwoRunsOfOneDatasetDoNotMix) {
  const std::filesystem::path pipe = folder_ / "a.txt";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const pid_t first = start([&] { prepare(options(pipe)); });
  // Opening returns once the first run reads, which then holds the lock.
  std::FILE* input = std::fopen(pipe.c_str(), "w");
  const auto other = write("b.txt", "b");
  EXPECT_THAT(
      message_of<ConfigError>([&] { prepare(options(other)); }),
      HasSubstr("another run is writing"));
  std::fputs("first", input);
  std::fclose(input);
  int status = 0;
  ::waitpid(first, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tokens().size(), 6U);
}

}  // namespace
}  // namespace brigade
