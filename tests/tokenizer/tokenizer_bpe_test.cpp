// Byte pair encoding against its definition: scan all pairs, merge the first
// one of the lowest rank, begin again. Random small vocabularies reach what
// natural ones do not: merges across every boundary, unknown characters
// between known ones, words longer than the cache takes.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/bpe_boundaries.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "brigade/tokenizer/word_cache.h"

namespace brigade {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

enum class Unknown { kBytes, kFused, kSingle, kVanishes, kSomeBytes };

struct BpeVocabulary {
  std::map<std::string, int32_t> ids;
  std::vector<std::pair<std::string, std::string>> merges;
  Unknown unknown = Unknown::kBytes;

  int32_t add(const std::string& token) {
    return ids.emplace(token, static_cast<int32_t>(ids.size())).first->second;
  }
};

std::string byte_token(int byte) {
  return fmt::format("<0x{:02X}>", byte);
}

BpeVocabulary random_vocabulary(std::mt19937& random, Unknown unknown) {
  BpeVocabulary vocabulary{.unknown = unknown};
  vocabulary.add("<unk>");
  if (unknown == Unknown::kBytes || unknown == Unknown::kSomeBytes) {
    for (int byte = 0; byte < 256; ++byte) {
      if (unknown == Unknown::kBytes || byte % 3 != 0)
        vocabulary.add(byte_token(byte));
    }
  }
  std::vector<std::string> tokens = {"a", "b", "c", "\u2581", "é", "日"};
  for (const std::string& token : tokens)
    vocabulary.add(token);
  const size_t count = 3 + random() % 25;
  for (size_t i = 0; i < count; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    vocabulary.add(left + right);
    vocabulary.merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  return vocabulary;
}

std::string to_json(const BpeVocabulary& vocabulary) {
  const bool has_unk = vocabulary.unknown == Unknown::kFused ||
                       vocabulary.unknown == Unknown::kSingle ||
                       vocabulary.unknown == Unknown::kSomeBytes;
  return Json{
      {"version", "1.0"},
      {"model",
       {{"type", "BPE"},
        {"unk_token", has_unk ? Json("<unk>") : Json()},
        {"fuse_unk", vocabulary.unknown == Unknown::kFused},
        {"byte_fallback",
         vocabulary.unknown == Unknown::kBytes ||
             vocabulary.unknown == Unknown::kSomeBytes},
        {"vocab", vocabulary.ids},
        {"merges", vocabulary.merges}}}}
      .dump();
}

// The definition, as slow as it reads.
Ids naive_encode(const BpeVocabulary& vocabulary, const std::string& text) {
  const bool bytes = vocabulary.unknown == Unknown::kBytes ||
                     vocabulary.unknown == Unknown::kSomeBytes;
  std::vector<std::string> tokens;
  bool unk_waits = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const std::string c = text.substr(at, utf8_length(text[at]));
    if (vocabulary.ids.contains(c)) {
      if (unk_waits)
        tokens.push_back("<unk>");
      unk_waits = false;
      tokens.push_back(c);
      continue;
    }
    std::vector<std::string> spelled;
    for (const char byte : c) {
      const std::string token = byte_token(static_cast<unsigned char>(byte));
      if (bytes && vocabulary.ids.contains(token))
        spelled.push_back(token);
    }
    if (spelled.size() == c.size()) {
      tokens.insert(tokens.end(), spelled.begin(), spelled.end());
    } else if (vocabulary.unknown != Unknown::kVanishes) {
      if (unk_waits && vocabulary.unknown != Unknown::kFused)
        tokens.push_back("<unk>");
      unk_waits = true;
    }
  }
  if (unk_waits)
    tokens.push_back("<unk>");

  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank)
    ranks[vocabulary.merges[rank]] = rank;
  while (true) {
    size_t best = SIZE_MAX;
    size_t best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best == SIZE_MAX)
      break;
    tokens[best] += tokens[best + 1];
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& token : tokens)
    ids.push_back(vocabulary.ids.at(token));
  return ids;
}

std::string random_text(std::mt19937& random, size_t characters) {
  static const char* const kCharacters[] = {
      "a", "b", "c", "\u2581", "é", "日", "Z", "\u00C3", "\U0001F600"};
  // Mostly known characters, so that merges have something to do.
  const size_t kinds = random() % 2 == 0 ? 6 : std::size(kCharacters);
  std::string text;
  for (size_t i = 0; i < characters; ++i)
    text += kCharacters[random() % kinds];
  return text;
}

class BpeDefinition : public ::testing::TestWithParam<Unknown> {};

TEST_P(BpeDefinition, EncodingEqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(2026);
  for (int round = 0; round < 60; ++round) {
    const BpeVocabulary vocabulary = random_vocabulary(random, GetParam());
    const HuggingFaceTokenizer tokenizer(to_json(vocabulary), "random");
    for (const size_t characters : {1, 7, 20, 50, 150, 300}) {
      const std::string text = random_text(random, characters);
      const Ids expected = naive_encode(vocabulary, text);
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
      // Once more, from the cache.
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    BpeDefinition,
    ::testing::Values(
        Unknown::kBytes,
        Unknown::kFused,
        Unknown::kSingle,
        Unknown::kVanishes,
        Unknown::kSomeBytes));

// The "▁" of words follows no letter in any merge, so that is where a text
// falls apart; inside a word it does not.
TEST(BpeBoundaries, ABoundaryIsSafeUnlessSomeMergeReachesAcrossIt) {
  BpeBoundaries boundaries;
  boundaries.add_merge("\u2581", "t");
  boundaries.add_merge("\u2581t", "he");
  const auto is_safe = [&](char32_t left, char32_t right) {
    return boundaries.is_safe(
        boundaries.left_class(left), boundaries.right_class(right));
  };
  EXPECT_FALSE(is_safe(U'\u2581', U't'));
  EXPECT_FALSE(is_safe(U't', U'h'));
  EXPECT_TRUE(is_safe(U'e', U'\u2581'));
  EXPECT_TRUE(is_safe(U'h', U't'));
  EXPECT_TRUE(is_safe(U'\u2581', U'z'));
}

// Past the classes that there is room for, boundaries may only be missed.
TEST(BpeBoundaries, ManyCharactersNeverMakeAnUnsafeBoundarySafe) {
  BpeBoundaries boundaries;
  const auto text = [](char32_t c) {
    std::string out;
    append_utf8(out, c);
    return out;
  };
  for (char32_t c = 0x4E00; c < 0x4E00 + 5000; ++c)
    boundaries.add_merge(text(c), text(c + 1));
  for (char32_t c = 0x4E00; c < 0x4E00 + 5000; ++c) {
    EXPECT_FALSE(boundaries.is_safe(
        boundaries.left_class(c), boundaries.right_class(c + 1)));
  }
}

TEST(WordCache, AWordIsFoundAgainAndKindsAreApart) {
  using Kind = WordCache::Kind;
  WordCache cache;
  Ids ids;
  EXPECT_FALSE(cache.find(Kind::kText, "word", ids));
  cache.insert(Kind::kText, "word", Ids{1, 2});
  cache.insert(Kind::kBytes, "word", Ids{3});
  cache.insert(Kind::kText, "", Ids{});
  EXPECT_TRUE(cache.find(Kind::kText, "word", ids));
  EXPECT_TRUE(cache.find(Kind::kBytes, "word", ids));
  EXPECT_FALSE(cache.find(Kind::kPart, "word", ids));
  EXPECT_FALSE(cache.find(Kind::kText, "wor", ids));
  EXPECT_TRUE(cache.find(Kind::kText, "", ids));
  EXPECT_EQ(ids, (Ids{1, 2, 3}));
}

TEST(WordCache, MoreWordsThanItHoldsNeverGiveWrongTokens) {
  WordCache cache;
  for (int32_t i = 0; i < 100'000; ++i) {
    const std::string word = std::to_string(i % 50'000);
    const Ids tokens = {i % 50'000, -1};
    Ids ids;
    if (!cache.find(WordCache::Kind::kText, word, ids)) {
      cache.insert(WordCache::Kind::kText, word, tokens);
      ASSERT_TRUE(cache.find(WordCache::Kind::kText, word, ids));
    }
    ASSERT_EQ(ids, tokens);
  }
}

// Time grows with the text, not with its square, which would take hours, more
// than a test is given.
TEST(BpeModel, LongRunsOfOneCharacterTakeLinearTime) {
  constexpr size_t kLong = 1 << 22;
  BpeVocabulary vocabulary;
  for (const char c : {'a', ' '}) {
    std::string run(1, c);
    vocabulary.add(run);
    for (int doubling = 0; doubling < 5; ++doubling) {
      vocabulary.merges.emplace_back(run, run);
      run += run;
      vocabulary.add(run);
    }
  }
  const HuggingFaceTokenizer tokenizer(to_json(vocabulary), "runs");
  for (const char c : {'a', ' '})
    EXPECT_EQ(tokenizer.encode(std::string(kLong, c)).size(), kLong / 32);
}

TEST(HuggingFaceTokenizer, ThreadsGetTheTokensOfOneThread) {
  std::mt19937 random(5);
  const BpeVocabulary vocabulary = random_vocabulary(random, Unknown::kBytes);
  const HuggingFaceTokenizer tokenizer(to_json(vocabulary), "threads");
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(random_text(random, 80));
    expected.push_back(naive_encode(vocabulary, texts.back()));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i)
        wrong[t] += tokenizer.encode(texts[i]) != expected[i];
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, (std::vector<int>(4, 0)));
}

}  // namespace
}  // namespace brigade
