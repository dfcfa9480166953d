#include "brigade/data/text_reader.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "brigade/data/whole_text.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string skippable(char number) {
  const char magic[] = {static_cast<char>(0x50 + number), 0x2A, 0x4D, 0x18};
  return std::string(magic, 4) + std::string("\x04\0\0\0", 4) + "abcd";
}

// Words, lines and multi-byte characters, the same for the same seed.
std::string random_text(uint32_t seed, size_t size) {
  static const char* kWords[] = {
      "a", "word", " ", " ", "\n", "\n", "é", "…", "🚒", "--", "\n\n", "\t"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < size)
    text += kWords[random() % std::size(kWords)];
  return text;
}

class TextReaderTest : public DataTest {
 protected:
  // The documents of files, joined from their pieces.
  std::vector<std::string> documents(
      const std::vector<std::filesystem::path>& paths,
      const TextOptions& options = {}) {
    TextReader reader(find_text_files(paths), options);
    std::vector<std::string> result;
    bool open = false;
    TextBlock block;
    while (reader.next(block)) {
      for_each_piece(
          block, reader.files()[block.file], options, [&](const TextPiece& p) {
            EXPECT_EQ(p.continues, open);
            if (!p.continues)
              result.emplace_back();
            result.back() += p.text;
            open = !p.ends_document;
          });
    }
    EXPECT_FALSE(open);
    return result;
  }
  std::string refusal(
      const std::filesystem::path& path,
      const TextOptions& options = {}) {
    return message_of<DataError>([&] { documents({path}, options); });
  }
};

TEST_F(TextReaderTest, BlocksOfAnySizeGiveTheFileBack) {
  const std::string text = random_text(1, 5000);
  const auto path = write("a.txt", text);
  for (const uint64_t block_bytes : {16, 17, 64, 1000, 4999, 5000, 9000})
    EXPECT_THAT(
        documents({path}, {.block_bytes = block_bytes}), ElementsAre(text));
}

TEST_F(TextReaderTest, SeparatorsSplitAsTheyDoInTheWholeText) {
  for (const std::string separator : {"\n\n", "a", "--", "…"}) {
    const std::string text = random_text(2, 3000);
    std::vector<std::string> expected;
    size_t begin = 0;
    while (true) {
      const size_t end = text.find(separator, begin);
      expected.push_back(text.substr(begin, end - begin));
      if (end == std::string::npos)
        break;
      begin = end + separator.size();
    }
    const auto path = write("a.txt", text);
    for (const uint64_t block_bytes : {32, 33, 100, 1001, 5000}) {
      const auto found = documents(
          {path},
          {.document_separator = separator, .block_bytes = block_bytes});
      EXPECT_EQ(found, expected) << separator << " " << block_bytes;
    }
  }
}

TEST_F(TextReaderTest, ReadsGzipAndZstandardAndConcatenationsOfThem) {
  const std::string text = random_text(3, 700000);
  const std::string half = text.substr(0, 300000);
  const std::string rest = text.substr(300000);
  const TextOptions options{.block_bytes = 50000};
  for (const auto& path :
       {write("a.txt.gz", gzipped(text)),
        write("b.txt.gz", gzipped(half) + gzipped(rest)),
        write("c.txt.gz", gzipped(text) + std::string(512, '\0')),
        write("d.txt.zst", zstandard(text)),
        write("e.txt.zst", zstandard(half) + zstandard(rest)),
        // With skippable frames of arbitrary bytes in front, between and
        // behind.
        write(
            "s.txt.zst",
            skippable(0) + zstandard(half) + skippable(15) + zstandard(rest) +
                skippable(7)),
        // The content decides, since a name may be wrong.
        write("f.txt", gzipped(text)),
        write("g.txt.gz", text)})
    EXPECT_THAT(documents({path}, options), ElementsAre(text)) << path;
}

TEST_F(TextReaderTest, DamagedOrCutCompressionIsRefusedWithTheOffset) {
  const std::string text = random_text(4, 700000);
  std::string gz = gzipped(text);
  std::string zst = zstandard(text);
  EXPECT_THAT(
      refusal(write("a.txt.gz", gz.substr(0, gz.size() - 5))),
      AllOf(
          HasSubstr("a.txt.gz] at byte " + std::to_string(gz.size() - 5)),
          HasSubstr("cut off")));
  EXPECT_THAT(
      refusal(write("a.txt.zst", zst.substr(0, zst.size() - 5))),
      HasSubstr("cut off"));
  gz[gz.size() - 6] ^= 1;  // the checksum
  EXPECT_THAT(refusal(write("a.txt.gz", gz)), HasSubstr("damaged gzip"));
  zst[20000] ^= 0x55;
  EXPECT_THAT(
      refusal(write("a.txt.zst", zst)),
      AllOf(HasSubstr("a.txt.zst] at byte"), HasSubstr("compressed file")));
  // The messages of zlib and libzstd are not shown.
  zst = zstandard(text);
  zst[1] ^= 1;
  EXPECT_THAT(
      refusal(write("b.txt.zst", zstandard(text) + zst)),
      HasSubstr("no frame begins here"));
  EXPECT_THAT(
      refusal(write("b.txt.gz", gzipped(text) + "garbage")),
      HasSubstr("damaged gzip"));
}

TEST_F(TextReaderTest, InvalidUtf8IsNamedWithFileOffsetAndLine) {
  std::string text = random_text(5, 3000);
  const size_t offset = text.find("word", 2000);
  text[offset] = '\xFF';
  const auto lines =
      1 + std::count(text.begin(), text.begin() + long(offset), '\n');
  const auto path = write("a.txt", text);
  for (const uint64_t block_bytes : {64, 1000, 5000}) {
    EXPECT_THAT(
        refusal(path, {.block_bytes = block_bytes}),
        HasSubstr(
            "a.txt] at byte " + std::to_string(offset) + ", line " +
            std::to_string(lines) + ": byte 0xff is not UTF-8"));
  }
  EXPECT_THAT(refusal(write("b.txt", "\xFF\xFEh\0i\0")), HasSubstr("UTF-16"));
  // The file ends inside a character.
  EXPECT_THAT(
      refusal(write("c.txt", "abc\xC3")),
      HasSubstr("c.txt] at byte 3, line 1"));
}

TEST_F(TextReaderTest, Latin1BecomesUtf8AndAByteOrderMarkIsDropped) {
  EXPECT_THAT(
      documents(
          {write("a.txt", "caf\xE9")}, {.encoding = TextEncoding::kLatin1}),
      ElementsAre("café"));
  EXPECT_THAT(documents({write("b.txt", "\xEF\xBB\xBFhi")}), ElementsAre("hi"));
}

TEST_F(TextReaderTest, ReadsTheTextOfEachLineOfJson) {
  const auto path = write(
      "a.jsonl",
      "{\"id\": 1, \"text\": \"one\\nline \\u00e9\"}\r\n"
      "\n"
      "{\"meta\": {\"text\": \"inner\"}, \"text\": \"two\", \"x\": [1]}\n"
      "  {\"text\": \"\"}\n"
      "{\"text\": \"last\"}");
  for (const uint64_t block_bytes : {16, 60, 1000}) {
    EXPECT_THAT(
        documents({path}, {.block_bytes = block_bytes}),
        ElementsAre("one\nline é", "two", "", "last"));
  }
}

TEST_F(TextReaderTest, MembersThatAreNotReadMayHoldAnyJson) {
  const std::string deep = std::string(2000, '[') + std::string(2000, ']');
  EXPECT_THAT(
      documents({write(
          "a.jsonl",
          "{\"n\": 1e999, \"s\": \"\\ud800\", \"text\": \"one\"}\n"
          "{\"text\": \"two\", \"deep\": " +
              deep +
              "}\n"
              "{\"\\udc00\": {\"a\": [-0.5E+10, true, null]}, \"text\": "
              "\"3\"}\n"
              // As Python's json module writes them.
              "{\"a\": NaN, \"text\": \"4\", \"b\": [Infinity, -Infinity]}")}),
      ElementsAre("one", "two", "3", "4"));
  for (const char* line :
       {R"({"n": 1e999, "text": "one")",
        R"({"n": 01e999, "text": "one"})",
        R"({"n": 1e999, "text": "one"} x)",
        R"({"n": 1e999, "text": "\ud800"})",
        R"({"n": nan, "text": "one"})",
        R"({"n": -NaN, "text": "one"})",
        R"({"n": [1e999}, "text": "one"})"})
    EXPECT_THAT(refusal(write("b.jsonl", line)), HasSubstr("not valid JSON"))
        << line;
  EXPECT_THAT(
      refusal(write("b.jsonl", R"({"n": NaN})")),
      HasSubstr("the object has no member 'text'; --json-key names"));
  EXPECT_THAT(
      refusal(write("b.jsonl", R"({"n": 1e999, "text": 1})")),
      HasSubstr("there is no string in 'text'"));
}

TEST_F(TextReaderTest, BadLinesCanBeGivenToTheCallerInstead) {
  const auto path = write(
      "a.jsonl",
      "{\"text\": \"one\"}\n[1]\n{\"text\": \"caf\xE9\"}\n\n{\"body\": 1}\n"
      "{\"text\": \"two\"}\n");
  TextReader reader(find_text_files({path}), {});
  TextBlock block;
  ASSERT_TRUE(reader.next(block));
  std::vector<std::string> texts, bad;
  for_each_piece(
      block,
      reader.files()[0],
      {},
      [&](const TextPiece& piece) { texts.emplace_back(piece.text); },
      [&](const DataError& error) { bad.emplace_back(error.what()); });
  EXPECT_THAT(texts, ElementsAre("one", "two"));
  EXPECT_THAT(
      bad,
      ElementsAre(
          HasSubstr("line 2: the line is not a JSON object"),
          HasSubstr("line 3: byte 0xe9 is not UTF-8"),
          HasSubstr("line 5: the object has no member 'text'")));
}

TEST_F(TextReaderTest, AWholeTextIsReadAsADatasetIs) {
  const std::string text = random_text(5, 700000) + "\r\nend";
  EXPECT_EQ(
      read_whole_text(write("a.txt.gz", gzipped("\xEF\xBB\xBF" + text))), text);
  EXPECT_EQ(read_whole_text(write("b.txt", "")), "");
  const auto path = write("c.txt", "one\ncaf\xE9");
  EXPECT_THAT(
      message_of<DataError>([&] { read_whole_text(path); }),
      AllOf(HasSubstr("c.txt] at byte 7, line 2"), HasSubstr("not UTF-8")));
}

TEST_F(TextReaderTest, TheKeyOfTheTextCanBeAnother) {
  const auto path = write("a.jsonl", R"({"text": 1, "content": "yes"})");
  EXPECT_THAT(documents({path}, {.json_key = "content"}), ElementsAre("yes"));
  EXPECT_THAT(refusal(path), HasSubstr("there is no string in 'text'"));
  EXPECT_THAT(
      refusal(path, {.json_key = "body"}),
      AllOf(
          HasSubstr("a.jsonl] at byte 0, line 1"),
          HasSubstr("no member 'body'"),
          HasSubstr("--json-key")));
}

TEST_F(TextReaderTest, LinesThatAreNotJsonAreNamedWithOffsetAndLine) {
  const std::string good = "{\"text\": \"é\"}\n";
  EXPECT_THAT(
      refusal(write("a.jsonl", good + good + "{\"text\": oops}\n")),
      AllOf(
          // 15 bytes per line, then the place inside the third.
          HasSubstr("a.jsonl] at byte 39, line 3"),
          HasSubstr("not valid JSON, at /text: expected")));
  EXPECT_THAT(
      refusal(write("a.jsonl", good + "[1]\n")),
      HasSubstr("at byte 15, line 2: the line is not a JSON object"));
  // With Latin-1 the offset is still that of the file.
  EXPECT_THAT(
      refusal(
          write("a.jsonl", "{\"text\": \"\xE9\"}\n[1]\n"),
          {.encoding = TextEncoding::kLatin1}),
      HasSubstr("at byte 14, line 2"));
}

TEST_F(TextReaderTest, AFolderGivesItsTextFilesInTheOrderOfTheirPaths) {
  write("d/b.txt", "b");
  write("d/a/z.jsonl", "{\"text\": \"z\"}");
  write("d/c.txt.gz", gzipped("c"));
  write("d/notes.md", "not text to us");
  write("d/.hidden.txt", "hidden");
  write("d/.git/x.txt", "hidden");
  EXPECT_THAT(documents({folder_ / "d"}), ElementsAre("z", "b", "c"));
}

// A link to the folder in which it lies has no end.
TEST_F(TextReaderTest, LinksThatLeadInALoopAreLeftOutAndOtherFilesAreCounted) {
  write("d/b.txt", "b");
  write("d/e/c.txt", "c");
  write("d/notes.md", "not text to us");
  write("d/e/image.png", "nor this");
  std::filesystem::create_directory_symlink(folder_ / "d", folder_ / "d/e/up");
  std::filesystem::create_directory_symlink(".", folder_ / "d/here");
  std::filesystem::create_symlink("itself", folder_ / "d/itself");
  SkippedFiles skipped;
  EXPECT_EQ(
      find_text_files({folder_ / "d"}, std::nullopt, &skipped).size(), 2U);
  EXPECT_EQ(skipped.count, 3U);
  EXPECT_EQ(skipped.first, folder_ / "d/e/image.png");
  EXPECT_THAT(
      refusal(folder_ / "d/itself"), HasSubstr("Too many levels of symbolic"));
}

// As datasets' save_to_disk() and, afterwards, map() write it.
TEST_F(TextReaderTest, OfASavedDatasetTheListedFilesAreReadAlone) {
  const std::string state =
      R"({"_data_files": [{"filename": "data-1.jsonl"},)"
      R"( {"filename": "data-2.jsonl"}], "_split": "train"})";
  for (const std::string split : {"test", "train"}) {
    write("d/" + split + "/cache-1.jsonl", "{\"text\": \"cached\"}");
    write("d/" + split + "/data-2.jsonl", "{\"text\": \"2\"}");
    write("d/" + split + "/data-1.jsonl", "{\"text\": \"" + split + "\"}");
    write("d/" + split + "/state.json", state);
  }
  write("d/more/cache-2.jsonl", "{\"text\": \"no dataset's\"}");
  write("d/more/state.json", R"({"step": 3})");
  EXPECT_THAT(
      documents({folder_ / "d"}),
      ElementsAre("no dataset's", "test", "2", "train", "2"));
  SkippedFiles skipped;
  find_text_files({folder_ / "d"}, std::nullopt, &skipped);
  EXPECT_EQ(skipped.count, 5U);
  EXPECT_EQ(skipped.first, folder_ / "d/more/state.json");
  std::filesystem::remove(folder_ / "d/train/data-2.jsonl");
  EXPECT_THAT(
      refusal(folder_ / "d"),
      AllOf(
          HasSubstr("d/train/state.json' lists '"),
          HasSubstr("d/train/data-2.jsonl', which does not exist")));
}

TEST_F(TextReaderTest, AJsonListHasADocumentPerElement) {
  const std::string list = "[{\"text\": \"one\"},\n {\"text\":\n\"two\"}]";
  for (const char* name : {"a.json", "a.jsonl"})
    EXPECT_THAT(documents({write(name, list)}), ElementsAre("one", "two"));
  // These do not say that they are JSON.
  for (const char* name : {"a.txt", "a"})
    EXPECT_THAT(documents({write(name, list)}), ElementsAre(list));
  EXPECT_THAT(
      documents({write("b.json", "{\"text\": \"one\"}")}), ElementsAre("one"));
  EXPECT_THAT(
      refusal(write("c.json", "\n[{\"text\": \"one\"},\n{\"a\":\n1}]")),
      HasSubstr("c.json] at element 2 of the list: the object has no member"));
}

TEST_F(TextReaderTest, InputThatCannotBeReadIsNamed) {
  EXPECT_THAT(refusal(folder_ / "no.txt"), HasSubstr("no.txt' does not exist"));
  write("empty/x.md", "");
  EXPECT_THAT(refusal(folder_ / "empty"), HasSubstr("holds no .txt"));
  EXPECT_THAT(
      refusal(write("x.bin", std::string("ab\0c", 4))),
      AllOf(HasSubstr("x.bin] at byte 2"), HasSubstr("--format")));
}

TEST_F(TextReaderTest, CutsLieAfterLinesBeforeSpacesOrBetweenCharacters) {
  EXPECT_EQ(find_cut("aaaa\nbbbb\ncccc", 12), 10U);
  // Not inside a run of white space, if there is another line end.
  EXPECT_EQ(find_cut("aaaaaa\nbb\n\ncc", 12), 7U);
  // Not between a line end and a /, which some tokenizers take along.
  EXPECT_EQ(find_cut("aaaaaa\nbb\n/cc", 12), 7U);
  EXPECT_EQ(find_cut("aaaa bbbb cccc", 12), 9U);
  EXPECT_EQ(find_cut("aaaa\n\nbbb cccc", 12), 9U);
  EXPECT_EQ(find_cut("aaaaaaa\n\n\nbbb", 12), 10U);
  EXPECT_EQ(find_cut("ééééééé", 9), 8U);
  EXPECT_EQ(find_cut("🚒🚒🚒", 7), 4U);
}

TEST_F(TextReaderTest, ContentDecidesWhereTheNameDoesNot) {
  struct Case {
    const char* content;
    std::vector<std::string> documents;
  };
  for (const Case& c :
       {Case{"plain\n{\"text\": \"a\"}\n", {"plain\n{\"text\": \"a\"}\n"}},
        Case{"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", {"a", "b"}},
        Case{"{\"text\": \"a\"}", {"a"}},
        Case{"{ but no JSON }\n", {"{ but no JSON }\n"}},
        Case{"[1]\n", {"[1]\n"}},
        Case{"", {""}}})
    EXPECT_EQ(documents({write("data.md", c.content)}), c.documents)
        << c.content;
  // A first line longer than a block.
  const std::string long_line =
      "{\"text\": \"" + std::string(5000, 'x') + "\"}\n";
  EXPECT_EQ(
      documents({write("data", long_line)}, {.block_bytes = 1000}),
      (std::vector<std::string>{std::string(5000, 'x')}));
}

TEST_F(TextReaderTest, AMinusIsStandardInput) {
  const int saved = ::dup(STDIN_FILENO);
  for (const auto& [content, expected] :
       {std::pair{"{\"text\": \"a\"}\n", "a"}, std::pair{"a\n", "a\n"}}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ASSERT_GT(::write(ends[1], content, strlen(content)), 0);
    ::close(ends[1]);
    ASSERT_EQ(::dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
    ::close(ends[0]);
    EXPECT_EQ(documents({"-"}), (std::vector<std::string>{expected}));
  }
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
}

}  // namespace
}  // namespace brigade
