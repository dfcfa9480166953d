#include "brigade/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/streaming_decoder.h"
#include "brigade/tokenizer/training.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class TokenizerTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

// English-like lines with characters of several scripts, from a fixed seed.
std::string sample_text(int lines) {
  static const char* const kWords[] = {
      "the",
      "ring",
      "bucket",
      "gradient",
      "hello",
      "world",
      "über",
      "日本",
      "naïve",
      "2026",
      "a",
      "of",
      "passes",
      "hand",
      "tokens"};
  std::mt19937 random(7);
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (int word = 0; word < 12; ++word) {
      text += kWords[random() % std::size(kWords)];
      text += word == 11 ? '\n' : ' ';
    }
  }
  return text;
}

TextSource once(std::string text) {
  return [text = std::move(text), given = false](std::string& out) mutable {
    if (given)
      return false;
    out = text;
    return given = true;
  };
}

TEST_F(TokenizerTest, BytesAreTheirOwnTokens) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->encode("aé\n"), (Ids{97, 0xC3, 0xA9, 10}));
  EXPECT_EQ(
      tokenizer->encode("a", {.special_tokens = SpecialTokens::kTemplate}),
      (Ids{256, 97}));
  EXPECT_EQ(
      tokenizer->decode(Ids{256, 97, 0xC3, 0xA9, 257, 999, -1}),
      "<bos>aé<eos>");
  EXPECT_EQ(
      tokenizer->decode(Ids{256, 97, 257}, {.skip_special_tokens = true}), "a");
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(tokenizer->bos_id(), 256);
  EXPECT_EQ(tokenizer->eos_id(), 257);
  for (int32_t id = 0; id < 258; ++id)
    EXPECT_EQ(tokenizer->token_id(*tokenizer->token_text(id)), id);
  EXPECT_FALSE(tokenizer->token_text(258));
}

TEST_F(TokenizerTest, BrokenBytesDecodeToReplacementCharacters) {
  const auto tokenizer = load_tokenizer("bytes");
  // Unicode standard 15, table 3-8: one U+FFFD per maximal subpart.
  EXPECT_EQ(
      tokenizer->decode(
          Ids{0x61, 0xF1, 0x80, 0x80, 0xE1, 0x80, 0xC2, 0x62, 0x80, 0x63}),
      "a\uFFFD\uFFFD\uFFFDb\uFFFDc");
  EXPECT_EQ(tokenizer->decode(Ids{0xED, 0xA0, 0x80}), "\uFFFD\uFFFD\uFFFD");
}

TEST_F(TokenizerTest, StreamingGivesOnlyWholeCharacters) {
  const auto tokenizer = load_tokenizer("bytes");
  StreamingDecoder stream(*tokenizer);
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer->encode("aé日\U0001F600!"))
    pieces.push_back(stream.push(id));
  EXPECT_EQ(
      pieces,
      (std::vector<std::string>{
          "a", "", "é", "", "", "日", "", "", "", "\U0001F600", "!"}));
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(TokenizerTest, ATrainedModelDecodesEveryTextToItself) {
  const fs::path path = folder_ / "tokenizer.model";
  train_sentencepiece(once(sample_text(400)), path, {.vocab_size = 320});
  const auto tokenizer = load_tokenizer(folder_.path());
  EXPECT_EQ(tokenizer->vocab_size(), 320);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  for (const std::string text :
       {"the bucket brigade",
        "  two  spaces\n\n\ttab ",
        "",
        "Ω≈ç√ 日本語",
        "\U0001F469\u200D\U0001F680 e\u0301",
        "123 4567"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    StreamingDecoder stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : tokenizer->encode(text))
      streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), text);
  }
  const Ids plain = tokenizer->encode("the ring");
  Ids expected = {1};
  expected.insert(expected.end(), plain.begin(), plain.end());
  EXPECT_EQ(
      tokenizer->encode(
          "the ring", {.special_tokens = SpecialTokens::kTemplate}),
      expected);
  EXPECT_LT(plain.size(), 6U);  // words were learned
  expected.push_back(2);
  expected.insert(expected.end(), plain.begin(), plain.end());
  EXPECT_EQ(tokenizer->decode(expected), "<s>the ring</s> the ring");
}

TEST_F(TokenizerTest, TrainingTwiceGivesTheSameBytes) {
  const TokenizerTrainingOptions options{.vocab_size = 300};
  train_sentencepiece(once(sample_text(300)), folder_ / "a", options);
  train_sentencepiece(once(sample_text(300)), folder_ / "b", options);
  EXPECT_EQ(read_text_file(folder_ / "a"), read_text_file(folder_ / "b"));
}

TEST_F(TokenizerTest, TrainingOnLongLinesUsesAllOfThem) {
  // One line of 40 kB: the trainer itself would drop it.
  std::string text = sample_text(500);
  for (char& c : text)
    c = c == '\n' ? ' ' : c;
  train_sentencepiece(once(text), folder_ / "m.model", {.vocab_size = 350});
  EXPECT_LT(
      load_tokenizer(folder_ / "m.model")->encode("gradient bucket").size(),
      6U);
}

TEST_F(TokenizerTest, UnsuitableTrainingIsRefusedAndLeavesNoFile) {
  const fs::path path = folder_ / "m.model";
  const auto train = [&](std::string text, int64_t vocab_size) {
    train_sentencepiece(
        once(std::move(text)), path, {.vocab_size = vocab_size});
  };
  EXPECT_TRUE(contains(
      message_of<ConfigError>([&] { train(sample_text(9), 100); }), "100"));
  EXPECT_TRUE(contains(
      message_of<ConfigError>([&] { train(sample_text(9), 90000); }), "90000"));
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { train("", 300); }), "no text"));
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { train("ab\xFF", 300); }), "offset 2"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TokenizerTest, MissingAndDamagedFilesAreNamed) {
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { load_tokenizer(folder_ / "absent.json"); }),
      "absent.json"));
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { load_tokenizer(folder_.path()); }),
      "neither tokenizer.json nor"));
  write_text_file(folder_ / "tokenizer.model", "\xFF\xFFnot a model");
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { load_tokenizer(folder_.path()); }),
      "tokenizer.model"));
  write_text_file(folder_ / "empty.model", "");
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { load_tokenizer(folder_ / "empty.model"); }),
      "empty"));
}

TEST_F(TokenizerTest, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  train_sentencepiece(
      once(sample_text(300)), folder_ / "m.model", {.vocab_size = 300});
  const auto tokenizer = load_tokenizer(folder_ / "m.model");
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { tokenizer->encode("caf\xE9 au lait"); }),
      "0xE9 at offset 3"));
}

}  // namespace
}  // namespace brigade
