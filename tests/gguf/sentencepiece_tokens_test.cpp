#include "brigade/gguf/sentencepiece_tokens.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/tokenizer/training.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kSpace = "\u2581";

std::string run_of_spaces(int length) {
  std::string run;
  for (int i = 0; i < length; ++i)
    run += kSpace;
  return run;
}

json run_merge(int left, int right) {
  return json::array({run_of_spaces(left), run_of_spaces(right)});
}

// Llama 2's kind: "ab", and runs of up to four spaces, whose merges are
// unordered except that two spaces come last.
json tokenizer_with(const json& merges) {
  json vocabulary = {{"<unk>", 0}};
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[fmt::format("<0x{:02X}>", byte)] = vocabulary.size();
  for (const char* text : {"a", "b", "ab", "abb"})
    vocabulary[text] = vocabulary.size();
  for (int length = 1; length <= 4; ++length)
    vocabulary[run_of_spaces(length)] = vocabulary.size();
  return {
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", kSpace}},
          {{"type", "Replace"},
           {"pattern", {{"String", " "}}},
           {"content", kSpace}}}}}},
      {"pre_tokenizer", nullptr},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", merges}}}};
}

json merges_of_llama2() {
  return json::array(
      {"a b",
       "ab b",
       run_merge(2, 2),
       run_merge(2, 1),
       run_merge(1, 2),
       run_merge(1, 3),
       run_merge(3, 1),
       run_merge(1, 1)});
}

std::map<std::string, float> scores_of(const json& tokenizer) {
  TokenList tokens(300);
  add_sentencepiece_json(tokenizer, tokens);
  std::map<std::string, float> scores;
  for (const GgufToken& token : tokens.tokens())
    scores[token.text] = token.score;
  return scores;
}

std::string refusal_of(const json& merges) {
  return message_of<ConfigError>([&] { scores_of(tokenizer_with(merges)); });
}

TEST(SentencePieceTokens, RunsOfSpacesHaveOneScore) {
  const auto scores = scores_of(tokenizer_with(merges_of_llama2()));
  EXPECT_GT(scores.at("ab"), scores.at("abb"));
  EXPECT_GT(scores.at("abb"), scores.at(run_of_spaces(3)));
  EXPECT_EQ(scores.at(run_of_spaces(3)), scores.at(run_of_spaces(4)));
  EXPECT_GT(scores.at(run_of_spaces(3)), scores.at(run_of_spaces(2)));
}

TEST(SentencePieceTokens, MergesWithASpaceNeverHappen) {
  json merges = merges_of_llama2();
  for (const char* line : {"   ", "\u2581  "})
    merges.insert(merges.begin() + 1, line);
  json tokenizer = tokenizer_with(merges);
  for (const char* text : {" ", "  ", "\u2581 "})
    tokenizer["model"]["vocab"][text] = tokenizer["model"]["vocab"].size();
  auto scores = scores_of(tokenizer);
  for (const auto& [text, score] :
       scores_of(tokenizer_with(merges_of_llama2())))
    EXPECT_EQ(scores.at(text), score) << text;
}

TEST(SentencePieceTokens, PiecesThatNoScoresPutInOrderAreRefused) {
  json merges = merges_of_llama2();
  std::rotate(merges.begin() + 2, merges.end() - 1, merges.end());
  EXPECT_THAT(refusal_of(merges), HasSubstr("do not follow each other"));
  merges = merges_of_llama2();
  merges.erase(merges.begin() + 6);  // 3 and 1
  EXPECT_THAT(refusal_of(merges), HasSubstr("are not merged, but llama.cpp"));
  // Merges of "abb" with others between them.
  merges = json::array({"a b", "ab b", "ab a", "b a", "b b", "a ba", "a bb"});
  EXPECT_THAT(refusal_of(merges), HasSubstr("do not follow each other"));
}

// As the names beside a .model have it; its score stays, which its merges
// need.
TEST(SentencePieceTokens, AnOrdinaryPieceThatIsNamedBecomesSpecial) {
  const TemporaryFolder folder;
  const auto path = folder / "tokenizer.model";
  bool given = false;
  train_sentencepiece(
      [&](std::string& text) {
        text = "the ring passes the bucket of rings, and the gradient passes";
        return !std::exchange(given, true);
      },
      path,
      {.vocab_size = 290});
  TokenList plain(290);
  add_sentencepiece_model(path, {}, plain);
  const GgufToken piece = plain.tokens()[270];
  ASSERT_EQ(piece.type, PieceType::kNormal);
  for (const bool special : {true, false}) {
    TokenList named(290);
    add_sentencepiece_model(
        path, {{.id = 270, .content = piece.text, .special = special}}, named);
    EXPECT_EQ(
        named.tokens()[270].type,
        special ? PieceType::kControl : PieceType::kUserDefined);
    EXPECT_EQ(named.tokens()[270].score, piece.score);
  }
}

}  // namespace
}  // namespace brigade
