// The Unigram model against its definition: of all ways to cut a text, the one
// of the highest sum of scores. Small random vocabularies; scores are eighths,
// so sums are exact and ties are real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_trie.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "brigade/tokenizer/unigram_score.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

struct Pieces {
  std::vector<std::pair<std::string, double>> tokens = {{"<unk>", 0}};
  bool byte_fallback = false;

  std::string json() const {
    return Json{
        {"version", "1.0"},
        {"model",
         {{"type", "Unigram"},
          {"unk_id", 0},
          {"byte_fallback", byte_fallback},
          {"vocab", tokens}}}}
        .dump();
  }
};

Pieces random_pieces(std::mt19937& random) {
  Pieces pieces{.byte_fallback = random() % 2 == 0};
  if (pieces.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) {
      if (random() % 8 != 0)
        pieces.tokens.emplace_back(fmt::format("<0x{:02X}>", byte), -20);
    }
  }
  const char* const characters[] = {"a", "b", "c", "\u2581", "é", "日"};
  std::map<std::string, bool> known;
  const size_t count = 5 + random() % 40;
  for (size_t i = 0; i < count; ++i) {
    std::string token;
    const size_t length = 1 + random() % 5;
    for (size_t j = 0; j < length; ++j)
      token += characters[random() % std::size(characters)];
    if (known.emplace(token, true).second)
      pieces.tokens.emplace_back(
          token, -static_cast<double>(random() % 80) / 8);
  }
  return pieces;
}

// The best path by its recurrence, over all pairs of positions.
Ids naive_encode(const Pieces& pieces, const std::string& text) {
  std::map<std::string, int32_t> ids;
  double lowest = 1e9;
  for (size_t i = 0; i < pieces.tokens.size(); ++i) {
    ids[pieces.tokens[i].first] = static_cast<int32_t>(i);
    lowest = std::min(lowest, pieces.tokens[i].second);
  }
  std::vector<size_t> ends = {0};
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at]))
    ends.push_back(at + utf8_length(text[at]));
  std::vector<double> best(ends.size(), -1e18);
  std::vector<size_t> from(ends.size());
  std::vector<int32_t> last(ends.size());
  best[0] = 0;
  for (size_t end = 1; end < ends.size(); ++end) {
    for (size_t begin = 0; begin < end; ++begin) {
      const std::string token =
          text.substr(ends[begin], ends[end] - ends[begin]);
      const auto found = ids.find(token);
      if (found == ids.end() && begin + 1 != end)
        continue;
      const int32_t id = found == ids.end() ? 0 : found->second;
      const double score =
          found == ids.end() ? lowest - 10 : pieces.tokens[id].second;
      if (best[begin] + score > best[end]) {
        best[end] = best[begin] + score;
        from[end] = begin;
        last[end] = id;
      }
    }
  }
  std::vector<std::pair<std::string, int32_t>> path;
  for (size_t end = ends.size() - 1; end > 0; end = from[end])
    path.emplace_back(
        text.substr(ends[from[end]], ends[end] - ends[from[end]]), last[end]);
  std::reverse(path.begin(), path.end());
  Ids result;
  for (size_t i = 0; i < path.size();) {
    if (path[i].second != 0) {
      result.push_back(path[i++].second);
      continue;
    }
    std::string unknown;
    for (; i < path.size() && path[i].second == 0; ++i)
      unknown += path[i].first;
    Ids bytes;
    for (const char c : unknown) {
      const auto byte =
          ids.find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c)));
      if (byte != ids.end())
        bytes.push_back(byte->second);
    }
    if (ids.contains(unknown))
      result.push_back(ids[unknown]);
    else if (pieces.byte_fallback && bytes.size() == unknown.size())
      result.insert(result.end(), bytes.begin(), bytes.end());
    else
      result.push_back(0);
  }
  return result;
}

std::string random_pieces_text(std::mt19937& random, size_t characters) {
  static const char* const kCharacters[] = {
      "a", "b", "c", "\u2581", "é", "日", "Z", "\U0001F600", "<unk>"};
  const size_t kinds = random() % 2 == 0 ? 6 : std::size(kCharacters);
  std::string text;
  for (size_t i = 0; i < characters; ++i)
    text += kCharacters[random() % kinds];
  return text;
}

TEST(UnigramModel, EncodingEqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(2026);
  for (int round = 0; round < 200; ++round) {
    const Pieces pieces = random_pieces(random);
    const HuggingFaceTokenizer tokenizer(pieces.json(), "random");
    for (const size_t characters : {1, 5, 12, 40, 100}) {
      const std::string text = random_pieces_text(random, characters);
      const Ids expected = naive_encode(pieces, text);
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
      // Once more, from the cache.
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
    }
  }
}

// Time grows with the text, not with its square, which would take hours, more
// than a test is given; also where no position lies between tokens.
TEST(UnigramModel, LongTextsTakeLinearTime) {
  Pieces pieces;
  std::string run;
  for (int length = 1; length <= 16; ++length) {
    run += 'a';
    pieces.tokens.emplace_back(run, -8.0 - length % 3);
  }
  pieces.tokens.emplace_back(" b", -3);
  const HuggingFaceTokenizer tokenizer(pieces.json(), "runs");
  for (const std::string unit : {"a", "Z", "aaa b"}) {
    std::string text;
    while (text.size() < (1 << 22))
      text += unit;
    EXPECT_FALSE(tokenizer.encode(text).empty());
  }
}

TEST(UnigramModel, AnUnknownTokenThatIsNeededButMissingIsNamed) {
  Json json = Json::parse(Pieces{.tokens = {{"a", -1}, {"b", -2}}}.json());
  json["model"]["unk_id"] = nullptr;
  const HuggingFaceTokenizer tokenizer(json.dump(), "FILE");
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{0, 1}));
  EXPECT_THAT(
      [&] { tokenizer.encode("aé"); },
      ThrowsMessage<DataError>(
          "[tokenizer] FILE: at /model/unk_id: there is no unknown token, and "
          "the character U+00E9 needs it"));
}

TEST(UnigramModel, TheLaterOfTwoEqualTokensCounts) {
  const HuggingFaceTokenizer tokenizer(
      Pieces{.tokens = {{"<unk>", 0}, {"a", -1}, {"a", -9}, {"aa", -5}}}.json(),
      "FILE");
  EXPECT_EQ(tokenizer.encode("aa"), (Ids{3}));
  EXPECT_EQ(tokenizer.encode("a"), (Ids{2}));
  EXPECT_EQ(tokenizer.token_text(1), "a");
  EXPECT_EQ(tokenizer.vocab_size(), 4);
}

TEST(UnigramModel, ErrorsNameTheirPlace) {
  struct Case {
    const char* path;
    Json value;
    const char* complaint;
  };
  const Json base =
      Json::parse(Pieces{.tokens = {{"a", -1}, {"b", -2}}}.json());
  for (const Case& test : std::vector<Case>{
           {"/model/unk_id", 2, ": at /model/unk_id: 2 is outside 0 to 1"},
           {"/model/unk_id", "a", ": at /model/unk_id: expected an integer"},
           {"/model/vocab", Json::object(), ": at /model/vocab: expected an"},
           {"/model/vocab", Json::array(), ": at /model/vocab: the vocabulary"},
           {"/model/vocab/1", "b", ": at /model/vocab/1: expected [\"token\""},
           {"/model/vocab/1/1", "b", ": at /model/vocab/1: expected [\"token"},
           {"/model/vocab/0/0", 1, ": at /model/vocab/0: expected [\"token"},
           {"/model/byte_fallback",
            1,
            ": at /model/byte_fallback: expected"}}) {
    Json json = base;
    json[Json::json_pointer(test.path)] = test.value;
    EXPECT_THAT(
        [&] { HuggingFaceTokenizer(json.dump(), "FILE"); },
        ThrowsMessage<DataError>(HasSubstr(test.complaint)))
        << test.path;
  }
}

// What Hugging Face's engine printed for a score that it had read.
TEST(UnigramScore, IsRoundedTwiceAsTheEnginesReaderDoes) {
  EXPECT_EQ(engine_score(-15.275492379532281), -15.27549237953228);
  EXPECT_EQ(engine_score(-9.908701741838819), -9.90870174183882);
  EXPECT_EQ(engine_score(-1.8771917354846979), -1.877191735484698);
  EXPECT_EQ(engine_score(-14.429688151665367), -14.429688151665369);
  for (const double same : {0.0, -1.0, 2.5, -12.75, 1e300, 1e-300, 5e-324})
    EXPECT_EQ(engine_score(same), same);
}

// aaa+aaa+aa and aa+aaa+aaa have equal scores but for rounding. Hugging Face's
// engine gives the former; with correctly rounded scores the latter would win.
TEST(UnigramScore, DecidesBetweenSegmentationsOfEqualScore) {
  const HuggingFaceTokenizer tokenizer(
      Pieces{
          .tokens =
              {{"<unk>", 0},
               {"a", -2.105343932438993},
               {"aa", -3.6749381641929197},
               {"aaa", -3.778062042984023}}}
          .json(),
      "FILE");
  EXPECT_EQ(tokenizer.encode("aaaaaaaa"), (Ids{3, 3, 2}));
}

TEST(ByteTrie, FindsEveryKeyThatATextBeginsWith) {
  std::mt19937 random(7);
  const auto word = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i)
      text += static_cast<char>("ab\xFF\x00"[random() % 4]);
    return text;
  };
  for (int round = 0; round < 50; ++round) {
    std::map<std::string, int32_t> keys;
    for (size_t i = 0; i < random() % 60; ++i)
      keys.emplace(word(random() % 6), static_cast<int32_t>(i));
    std::vector<ByteTrie::Entry> entries;
    for (const auto& [key, value] : keys)
      entries.emplace_back(key, value);
    std::shuffle(entries.begin(), entries.end(), random);
    const ByteTrie trie(entries);
    for (int i = 0; i < 50; ++i) {
      const std::string text = word(8);
      std::vector<std::pair<size_t, int32_t>> found;
      trie.for_each_prefix(text, [&](size_t length, int32_t value) {
        found.emplace_back(length, value);
      });
      std::vector<std::pair<size_t, int32_t>> expected;
      for (size_t length = 1; length <= text.size(); ++length) {
        if (const auto key = keys.find(text.substr(0, length));
            key != keys.end())
          expected.emplace_back(length, key->second);
      }
      EXPECT_EQ(found, expected);
    }
  }
}

}  // namespace
}  // namespace brigade
