// Tasks are read, tokenized and rated by lm-evaluation-harness's rules,
// repeated here. tests/ecosystem compares with the harness itself.
#include "brigade/evaluate/tasks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "brigade/base/error.h"
#include "brigade/evaluate/task_tokens.h"
#include "tests/support/message_of.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr int64_t kBos = 256;  // plain bytes' begin token
constexpr int64_t kMost = 1000;

// The plain bytes tokenizer with other special tokens.
class BytesWith : public Tokenizer {
 public:
  BytesWith(std::optional<int32_t> bos, std::optional<int32_t> eos)
      : bos_(bos), eos_(eos) {}
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options) const override {
    std::vector<int32_t> ids = bytes_->encode(text);
    if (options.special_tokens == SpecialTokens::kTemplate && bos_)
      ids.insert(ids.begin(), *bos_);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options)
      const override {
    return bytes_->decode(ids, options);
  }
  int64_t vocab_size() const override { return bytes_->vocab_size(); }
  std::optional<int32_t> bos_id() const override { return bos_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::optional<std::string> token_text(int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id))
                    : bytes_->token_text(id);
  }
  std::optional<int32_t> token_id(std::string_view text) const override {
    return bytes_->token_id(text);
  }
  std::string description() const override { return "test"; }

 private:
  std::unique_ptr<Tokenizer> bytes_ = load_tokenizer("bytes");
  std::optional<int32_t> bos_;
  std::optional<int32_t> eos_;
};

Continuations tokens_of(
    const std::string& context,
    const std::string& choice,
    const Tokenizer& tokenizer = *load_tokenizer("bytes")) {
  return tokenize({.context = context, .choices = {choice}}, tokenizer, kMost);
}

TEST(Tasks, AreRatedByTheirLikeliestChoice) {
  const std::vector<TaskRequest> requests = {
      {.context = "a", .choices = {"long choice", "b"}, .gold = 0},
      {.context = "a", .choices = {"word"}, .gold = 0}};
  const TaskResult result =
      rate(requests, {{{-4.0, false}, {-3.0, false}}, {{-1.0, true}}});
  EXPECT_DOUBLE_EQ(result.accuracy, 0.5);  // "b" is likelier
  EXPECT_DOUBLE_EQ(result.normalized_accuracy.value(), 1.0);
  EXPECT_FALSE(result.perplexity.has_value());
}

// Against -5 for 4 characters, -3.2 for 3 characters (9 bytes) is more per
// character and -3.9 is less, although per byte both are more.
TEST(Tasks, NormalizedAccuracyDividesByCharacters) {
  const std::vector<TaskRequest> requests = {
      {.context = "a", .choices = {"日本語", "abcd"}, .gold = 0}};
  EXPECT_DOUBLE_EQ(
      rate(requests, {{{-3.2, false}, {-5.0, false}}})
          .normalized_accuracy.value(),
      1.0);
  EXPECT_DOUBLE_EQ(
      rate(requests, {{{-3.9, false}, {-5.0, false}}})
          .normalized_accuracy.value(),
      0.0);
}

TEST(Tasks, TheFirstOfEqualChoicesIsTheAnswer) {
  const TaskRequest request{.context = "a", .choices = {"b", "c"}, .gold = 1};
  EXPECT_EQ(rate({request}, {{{-1, false}, {-1, false}}}).accuracy, 0);
}

TEST(Tasks, HaveAPerplexityWithOneChoiceEach) {
  const TaskRequest request{.context = "a", .choices = {"b"}};
  const TaskResult result =
      rate({request, request}, {{{-4.0, false}}, {{-1.0, true}}});
  EXPECT_EQ(result.accuracy, 0.5);
  EXPECT_FALSE(result.normalized_accuracy.has_value());
  EXPECT_NEAR(result.perplexity.value(), std::exp(2.5), 1e-12);
}

TEST(Tasks, TextsAreRatedByTheirWordsAndBytes) {
  // 3 words (re.split adds an empty one), and 2 words split at U+3000.
  const TextResult result =
      rate_texts({"one two ", "\u00e9\u3000b"}, {6.0, 4.0});
  EXPECT_EQ(result.texts, 2);
  EXPECT_NEAR(result.word_perplexity, std::exp(10.0 / 5), 1e-12);
  EXPECT_NEAR(result.byte_perplexity, std::exp(10.0 / 14), 1e-12);
  EXPECT_NEAR(result.bits_per_byte, 10.0 / 14 / std::log(2.0), 1e-12);
  EXPECT_THROW(rate_texts({""}, {0}), DataError);
}

TEST(Tasks, TokensOfAChoiceAreThoseBeyondItsContext) {
  const Continuations tokens = tokens_of("Hi ", "x");
  EXPECT_EQ(tokens.context, (Ids{kBos, 'H', 'i'}));
  EXPECT_EQ(tokens.choices[0], (Ids{' ', 'x'}));
  // White space is stripped as Python strips it.
  EXPECT_EQ(tokens_of("a\u00a0\x1c\u3000", "x").context, (Ids{kBos, 'a'}));
  EXPECT_EQ(tokens_of("a\u200b", "x").context.size(), 5U);
}

TEST(Tasks, TheDelimiterStandsBeforeTheChoiceAndIsNoPartOfIt) {
  const auto bytes = load_tokenizer("bytes");
  const TaskRequest request{
      .context = "a", .target_delimiter = " ", .choices = {"bc", "d"}};
  EXPECT_THAT(
      tokenize(request, *bytes, kMost).choices,
      ElementsAre(Ids{' ', 'b', 'c'}, Ids{' ', 'd'}));
  // -3 for 2 characters and -2 for 1.
  EXPECT_EQ(
      rate({request}, {{{-3, false}, {-2, false}}}).normalized_accuracy, 1.0);
}

TEST(Tasks, TheTemplateStandsBeforeAContextUnlessItSaysSoItself) {
  EXPECT_EQ(tokens_of("a", "b").context, (Ids{kBos, 'a'}));
  const BytesWith none({}, 257);
  EXPECT_EQ(tokens_of("a", "b", none).context, (Ids{'a'}));
  const BytesWith star('*', 257);
  EXPECT_EQ(tokens_of("a", "b", star).context, (Ids{'*', 'a'}));
  EXPECT_EQ(tokens_of("*a", "b", star).context, (Ids{'*', 'a'}));
}

TEST(Tasks, AnEmptyContextIsTheBeginTokenElseTheEndToken) {
  EXPECT_EQ(tokens_of("", "x").context, (Ids{kBos}));
  const BytesWith eos({}, 257);
  EXPECT_EQ(tokens_of("", "x", eos).context, (Ids{257}));
  EXPECT_EQ(tokens_of(" ", "x", eos).context, (Ids{257}));
  EXPECT_EQ(tokens_of(" ", "x", eos).choices[0], (Ids{' ', 'x'}));
  // A choice that begins with the begin token gets no second one.
  const BytesWith star('*', 257);
  EXPECT_EQ(tokens_of("", "*x", star).context, (Ids{'*'}));
  EXPECT_EQ(tokens_of("", "*x", star).choices[0], (Ids{'x'}));
  const BytesWith neither({}, {});
  EXPECT_THROW(tokens_of("", "x", neither), DataError);
}

TEST(Tasks, AChoiceIsNoLongerThanTheModelSees) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_NO_THROW(tokenize({.context = "a", .choices = {"bcd"}}, *bytes, 3));
  EXPECT_THROW(
      tokenize({.context = "a", .choices = {"bcde"}}, *bytes, 3), DataError);
}

// The harness's get_rolling_token_windows(), on tokens that are their
// positions.
TEST(Tasks, RollingWindowsPredictEachTokenOnce) {
  const BytesWith tokenizer({}, 257);
  for (const size_t length : {1, 2, 5, 6, 7, 10, 11, 12, 23}) {
    for (const int64_t most : {1, 2, 5, 6, 40}) {
      std::string text;
      Ids sequence = {257};
      for (size_t i = 0; i < length; ++i) {
        text += static_cast<char>('a' + i);
        sequence.push_back('a' + static_cast<int64_t>(i));
      }
      Ids predicted;
      for (const auto& window : rolling_windows(text, tokenizer, most)) {
        const auto size = static_cast<int64_t>(window.tokens.size());
        EXPECT_LE(size, most + 1);
        EXPECT_LT(window.predicted, size);
        predicted.insert(
            predicted.end(),
            window.tokens.end() - window.predicted,
            window.tokens.end());
        // The longest run of the sequence that fits.
        const auto end =
            sequence.begin() + static_cast<int64_t>(predicted.size()) + 1;
        EXPECT_EQ(window.tokens, Ids(end - size, end));
        EXPECT_EQ(
            size,
            std::min<int64_t>(
                most + 1, static_cast<int64_t>(predicted.size()) + 1));
      }
      EXPECT_EQ(predicted, Ids(sequence.begin() + 1, sequence.end()));
    }
  }
  EXPECT_TRUE(rolling_windows("", tokenizer, 5).empty());
  EXPECT_THROW(rolling_windows("a", BytesWith({}, {}), 5), DataError);
}

TEST(Tasks, AreRequestsOrTexts) {
  const testing::RunsFolder folder;
  testing::write_file(
      folder / "requests",
      R"({"context": "a", "choices": [" b", " c"], "gold": 1, "text": "-"})"
      "\n\n"
      R"({"context": "", "choices": ["b"], "gold": 0, )"
      R"("target_delimiter": "\n"})"
      "\n");
  const Task requests = read_task(folder / "requests");
  ASSERT_EQ(requests.requests.size(), 2U);
  EXPECT_TRUE(requests.texts.empty());
  EXPECT_EQ(requests.requests[0].gold, 1U);
  EXPECT_EQ(requests.requests[0].target_delimiter, "");
  EXPECT_EQ(requests.requests[1].target_delimiter, "\n");
  testing::write_file(
      folder / "texts", "{\"text\": \"one\"}\n{\"text\": \"\"}\n");
  EXPECT_THAT(read_task(folder / "texts").texts, ElementsAre("one", ""));
}

TEST(Tasks, ErrorsNameTheLine) {
  const testing::RunsFolder folder;
  const auto error_of = [&](const std::string& text) {
    testing::write_file(folder / "task", text);
    return message_of<DataError>([&] { read_task(folder / "task"); });
  };
  EXPECT_THAT(error_of(""), HasSubstr("holds no request"));
  EXPECT_THAT(
      error_of("\n{\"context\": 1}"),
      HasSubstr("task:2:13: at /context: expected a string, found a number"));
  EXPECT_THAT(
      error_of(R"({"context": "a", "choices": ["b"], "gold": 1})"),
      HasSubstr("task:1:44: at /gold: 1 is outside 0 to 0"));
  EXPECT_THAT(
      error_of(R"({"context": "a", "choices": [], "gold": 0})"),
      HasSubstr("task:1:29: at /choices: there is no choice"));
  EXPECT_THAT(
      error_of(R"({"context": "a", "choices": ["b", ""], "gold": 0})"),
      HasSubstr("at /choices/1: the choice is empty"));
  EXPECT_THAT(
      error_of(R"({"context": "a", "choices": ["b"], "gold": 0})"
               "\n{"),
      HasSubstr("task:2:2: not valid JSON"));
  EXPECT_THAT(
      error_of(R"({"text": "a"})"
               "\n"
               R"({"context": "a", "choices": ["b"], "gold": 0})"),
      HasSubstr("one file holds either texts"));
}

}  // namespace
}  // namespace brigade
