#include "brigade/tokenizer/sentencepiece_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "brigade/tokenizer/training.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Ids = std::vector<int32_t>;

std::string random_words(uint32_t seed, int words) {
  static const char* const kWords[] = {"the",    "ring", "bucket", "gradient",
                                       "über",   "日本", "naïve",  "2026",
                                       "a",      "of",   "passes", "hand",
                                       "aaaa",   "====", "  ",     "\n",
                                       "\u2581", "\t",   "😀",      "abab"};
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += kWords[random() % std::size(kWords)];
    if (random() % 3 != 0)
      text += ' ';
  }
  return text;
}

class SentencePieceJsonTest : public ::testing::Test {
 protected:
  SentencePieceJsonTest() {
    bool given = false;
    train_sentencepiece(
        [&](std::string& text) {
          text = random_words(1, 6000);
          return !std::exchange(given, true);
        },
        folder_ / "tokenizer.model",
        {.vocab_size = 400});
  }

  void write(const char* name, const nlohmann::json& json) {
    write_text_file(folder_ / name, json.dump());
  }

  const TemporaryFolder folder_;
};

TEST_F(SentencePieceJsonTest, TheConvertedModelGivesTheLibrarysTokens) {
  const auto library = load_tokenizer((folder_ / "tokenizer.model").string());
  const auto json = convert_sentencepiece(folder_ / "tokenizer.model");
  ASSERT_TRUE(json);
  const HuggingFaceTokenizer own(*json, "FILE");
  EXPECT_EQ(own.vocab_size(), library->vocab_size());
  EXPECT_EQ(own.bos_id(), library->bos_id());
  EXPECT_EQ(own.eos_id(), library->eos_id());
  for (uint32_t seed = 2; seed < 300; ++seed) {
    const std::string text = random_words(seed, 1 + seed % 40);
    for (const auto special :
         {SpecialTokens::kNone, SpecialTokens::kTemplate}) {
      const Ids ids = library->encode(text, {special});
      ASSERT_EQ(own.encode(text, {special}), ids) << text;
      ASSERT_EQ(
          own.decode(ids, {.skip_special_tokens = true}),
          library->decode(ids, {.skip_special_tokens = true}))
          << text;
    }
  }
  for (const char* text : {"", " ", "  leading", "x", "\n", "trailing  "})
    EXPECT_EQ(own.encode(text), library->encode(text)) << text;
}

// A piece behind those of a .model: a message more of the same field.
void append_piece(
    const std::filesystem::path& path,
    const std::string& text,
    float score) {
  std::string piece = "\x0A" + std::string(1, static_cast<char>(text.size()));
  piece += text + "\x15";
  piece.append(reinterpret_cast<const char*>(&score), sizeof score);
  const std::string field =
      "\x0A" + std::string(1, static_cast<char>(piece.size())) + piece;
  write_text_file(path, read_text_file(path) + field);
}

// Llama 2's runs of spaces are such pieces.
TEST_F(SentencePieceJsonTest, PiecesOfOneScoreAreMergedFromTheLeft) {
  const auto path = folder_ / "tokenizer.model";
  for (const size_t length : {1, 2, 4, 5, 6, 3, 7})
    append_piece(path, std::string(length, '-'), -1e9F);
  const auto library = load_tokenizer(path.string());
  const auto json = convert_sentencepiece(path);
  ASSERT_TRUE(json);
  const HuggingFaceTokenizer own(*json, "FILE");
  for (size_t length = 1; length < 40; ++length) {
    const std::string text = "the" + std::string(length, '-') + "ring " +
                             std::string(length / 2, '-') + "\n";
    ASSERT_EQ(own.encode(text), library->encode(text)) << length;
  }
}

TEST_F(SentencePieceJsonTest, FilesBesideAddTheirTokens) {
  write("added_tokens.json", {{"<|im_start|>", 400}, {"<|im_end|>", 401}});
  write(
      "tokenizer_config.json",
      {{"bos_token", "<s>"},
       {"eos_token", "<|im_end|>"},
       {"added_tokens_decoder",
        {{"1", {{"content", "<s>"}, {"special", true}}},
         {"400", {{"content", "<|im_start|>"}, {"special", true}}},
         {"401", {{"content", "<|im_end|>"}, {"special", true}}}}}});
  const auto tokenizer = load_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), 402);
  EXPECT_EQ(tokenizer->eos_id(), 401);
  const Ids ids = tokenizer->encode(
      "the<|im_start|>ring", {.special_tokens = SpecialTokens::kTemplate});
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 400), 1);
  EXPECT_THAT(tokenizer->encode("<|im_end|>"), ElementsAre(401));
  write("tokenizer_config.json", {{"add_bos_token", false}});
  EXPECT_THAT(
      load_tokenizer(folder_.path().string())
          ->encode("<|im_end|>", {.special_tokens = SpecialTokens::kTemplate}),
      ElementsAre(401));
}

TEST_F(SentencePieceJsonTest, ATokenWithAGapBeforeItsIdIsRefused) {
  write("added_tokens.json", {{"<|im_start|>", 410}});
  EXPECT_THAT(
      [&] { load_tokenizer(folder_.path().string()); },
      ThrowsMessage<DataError>(HasSubstr("the next free id is 400")));
}

TEST_F(SentencePieceJsonTest, AModelThatCannotBeConvertedIsRefusedWithReason) {
  const SentencePieceModel bpe{
      .pieces = {{.text = "a"}},
      .algorithm = SentencePieceModel::Algorithm::kBpe};
  EXPECT_EQ(
      reason_not_to_convert({.pieces = {{.text = "a"}}}),
      "it is not of the kind BPE");
  EXPECT_EQ(reason_not_to_convert(bpe), "it normalises the text");
}

TEST(SentencePieceModel, DamagedBytesAreRefused) {
  for (const std::string bytes :
       {"\x0A",
        "\x0A\x05"
        "ab",
        "\x0B",
        "\xFF"})
    EXPECT_THROW(parse_sentencepiece_model(bytes, "FILE"), DataError);
}

}  // namespace
}  // namespace brigade
