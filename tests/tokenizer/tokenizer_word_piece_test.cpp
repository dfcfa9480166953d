// WordPiece against its definition: the longest token that the rest of the word
// begins with, again and again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/tokenizer_json.h"

namespace brigade {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

Json word_piece(const std::map<std::string, int32_t>& vocab, int max) {
  return {
      {"version", "1.0"},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", max},
        {"vocab", vocab}}}};
}

Ids naive_word_piece(
    const std::map<std::string, int32_t>& vocab,
    const std::vector<std::string>& characters,
    size_t max) {
  const Ids unknown = {vocab.at("[UNK]")};
  if (characters.size() > max)
    return unknown;
  Ids ids;
  for (size_t begin = 0; begin < characters.size();) {
    size_t end = characters.size();
    for (; end > begin; --end) {
      std::string token = begin > 0 ? "##" : "";
      for (size_t i = begin; i < end; ++i)
        token += characters[i];
      if (const auto found = vocab.find(token); found != vocab.end()) {
        ids.push_back(found->second);
        break;
      }
    }
    if (end == begin)
      return unknown;
    begin = end;
  }
  return ids;
}

TEST(WordPieceModel, EncodingEqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(2026);
  const std::vector<std::string> alphabet = {"a", "b", "#", "é", "日", "x"};
  const auto word = [&](size_t length) {
    std::vector<std::string> characters;
    for (size_t i = 0; i < length; ++i)
      characters.push_back(alphabet[random() % alphabet.size()]);
    return characters;
  };
  const auto joined = [](const std::vector<std::string>& characters) {
    std::string text;
    for (const std::string& c : characters)
      text += c;
    return text;
  };
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, int32_t> vocab = {{"[UNK]", 0}, {"##", 1}};
    for (size_t i = 0; i < 60; ++i) {
      const std::string prefix = random() % 3 == 0 ? "" : "##";
      vocab.emplace(
          prefix + joined(word(1 + random() % 4)),
          static_cast<int32_t>(vocab.size()));
    }
    const size_t max = 6 + random() % 10;
    const HuggingFaceTokenizer tokenizer(
        word_piece(vocab, static_cast<int>(max)).dump(), "random");
    for (int i = 0; i < 20; ++i) {
      const auto characters = word(1 + random() % 14);
      EXPECT_EQ(
          tokenizer.encode(joined(characters)),
          naive_word_piece(vocab, characters, max))
          << joined(characters);
    }
  }
}

TEST(WordPieceModel, AnUnknownTokenThatIsNeededButMissingIsNamed) {
  const HuggingFaceTokenizer tokenizer(
      word_piece({{"a", 0}, {"##b", 1}}, 100).dump(), "FILE");
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1}));
  EXPECT_THAT(
      [&] { tokenizer.encode("ba"); },
      ::testing::ThrowsMessage<DataError>(
          "[tokenizer] FILE: at /model/unk_token: \"[UNK]\" is not in "
          "/model/vocab, and a word of 2 bytes needs it"));
}

TEST(TokenModel, IsRecognisedWithoutItsTypeAsInOldFiles) {
  Json json = word_piece({{"[UNK]", 0}, {"a", 1}, {"##b", 2}}, 100);
  json["model"].erase("type");
  EXPECT_EQ(HuggingFaceTokenizer(json.dump(), "old").encode("ab"), (Ids{1, 2}));
  json["model"] = {
      {"unk_id", 0},
      {"vocab", Json::array({{"<unk>", 0.0}, {"a", -1.5}, {"b", -2}})}};
  const HuggingFaceTokenizer unigram(json.dump(), "old");
  EXPECT_EQ(unigram.encode("ab"), (Ids{1, 2}));
  EXPECT_EQ(
      unigram.description(),
      "tokenizer.json old: Unigram, 3 tokens, 0 added tokens");
}

}  // namespace
}  // namespace brigade
