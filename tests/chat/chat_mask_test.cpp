// Which tokens of a conversation count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/chat/chat_tokens.h"
#include "brigade/chat/conversation.h"
#include "brigade/tokenizer/tokenizer.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr const char* kBlocks =
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }};{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}";
constexpr const char* kNoBlocks =
    "{% for m in messages %}{{ m.content }};{% endfor %}";

// The text of the tokens, with what counts between [ and ].
std::string shown(const Tokenizer& tokenizer, const ChatTokens& tokens) {
  std::string text;
  uint8_t last = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    if (tokens.counts[i] != last)
      text += last == 0 ? "[" : "]";
    last = tokens.counts[i];
    text += tokenizer.decode(std::span(tokens.ids).subspan(i, 1));
  }
  return text + (last == 0 ? "" : "]");
}

std::string counting(
    const Tokenizer& tokenizer,
    const ChatTemplate& chat,
    const Json& record,
    std::optional<LossOn> loss = std::nullopt) {
  ChatTokensOptions options;
  options.loss = loss;
  return shown(
      tokenizer,
      ChatEncoder(tokenizer, &chat, std::move(options))
          .encode(read_conversation(record)));
}

// Of a tokenizer whose tokens are bytes.
std::string bytes_counting(
    const char* source,
    const Json& record,
    std::optional<LossOn> loss = std::nullopt) {
  const ChatTemplate chat(source, "t.jinja", Json::object());
  return counting(*load_tokenizer("bytes"), chat, record, loss);
}

Json user(const Json& content) {
  return {{"role", "user"}, {"content", content}};
}

Json assistant(const Json& content, const Json& weight = nullptr) {
  return {{"role", "assistant"}, {"content", content}, {"weight", weight}};
}

Json messages(const Json& list) {
  return {{"messages", list}};
}

TEST(ChatMask, AdjacentBlocksAreThoseOfTheirMessages) {
  const Json chat = {user("q"), assistant("one", 0), assistant("two")};
  EXPECT_EQ(bytes_counting(kBlocks, messages(chat)), "qone;[two;]");
  const Json all = {user("q"), assistant("one"), assistant("two")};
  EXPECT_EQ(bytes_counting(kBlocks, messages(all)), "q[one;two;]");
  EXPECT_EQ(
      bytes_counting(kBlocks, messages(all), LossOn::kLast), "qone;[two;]");
  EXPECT_EQ(
      bytes_counting(
          kBlocks,
          {{"prompt", {user("q"), assistant("one")}},
           {"completion", Json::array({assistant("two")})}}),
      "qone;[two;]");
}

TEST(ChatMask, ABlockCountsThoughItShowsNothingOfItsMessage) {
  EXPECT_EQ(
      bytes_counting(kBlocks, messages({user("q"), assistant("")})), "q[;]");
  EXPECT_EQ(
      bytes_counting(kBlocks, messages({user("q"), assistant("", 0)})), "q;");
  const std::string source = kBlocks;
  const std::string nested =
      "{% macro show(messages) %}" + source +
      "{% endmacro %}{% for m in messages[:1] %}{{ show(messages) }}"
      "{% endfor %}";
  EXPECT_EQ(
      bytes_counting(
          nested.c_str(),
          messages({user("q"), assistant("", 0), user("r"), assistant("")})),
      "q;r[;]");
  // Outside a loop over messages it counts where all of the assistant do.
  const char* indexed =
      "{% for i in range(messages|length) %}{% generation %};"
      "{% endgeneration %}{% endfor %}";
  EXPECT_EQ(
      bytes_counting(indexed, messages({user("q"), assistant("")})), ";[;]");
  EXPECT_EQ(
      bytes_counting(indexed, messages({assistant("", 0), assistant("")})),
      ";;");
}

std::string ended_counting(
    const std::string& source,
    const Json& record,
    std::optional<LossOn> loss = std::nullopt) {
  const auto tokenizer = load_tokenizer(
      BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/qwen2_like.json");
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role[0] + ':' }}" + source +
          "{{ '<|im_end|>' }}{% endfor %}",
      "t.jinja",
      Json::object());
  return counting(*tokenizer, chat, record, loss);
}

TEST(ChatMask, OfAnEmptyMessageTheTokenThatEndsItsTurnCounts) {
  const Json chat = {
      user("q"), assistant(""), user(""), assistant("two"), user("r")};
  const std::string front = "u:q<|im_end|>a:";
  const std::string back = "u:<|im_end|>a:[two<|im_end|>]u:r<|im_end|>";
  for (const char* source :
       {"{{ m.content }}",
        "{{ m.content | trim }}",
        "{{ '' ~ m.content.split('</t>')[-1].lstrip('\n') }}",
        "{% set c %}{{ m.content }}{% endset %}{{ c }}",
        "{{ m.name }}{{ m.content }}"}) {
    EXPECT_EQ(
        ended_counting(source, messages(chat)), front + "[<|im_end|>]" + back)
        << source;
  }
  EXPECT_EQ(
      ended_counting("{{ m.content }}", messages(chat), LossOn::kLast),
      front + "<|im_end|>" + back);
  const Json spaces = {user("q"), assistant(" \n")};
  EXPECT_EQ(
      ended_counting("{{ m.content | trim }}", messages(spaces)),
      front + "[<|im_end|>]");
  const Json part = {{"type", "text"}, {"text", ""}};
  const Json in_parts = {user("q"), assistant(Json::array({part}))};
  EXPECT_EQ(
      ended_counting(
          "{% if m.content is string %}{{ m.content }}{% else %}"
          "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
          messages(in_parts)),
      front + "[<|im_end|>]");
  // Two spaces are a token, which shows nothing of the message.
  EXPECT_EQ(
      ended_counting(
          "{{ ' ' + m.content + ' ' }}", messages({user("q"), assistant("")})),
      "u: q <|im_end|>a:  [<|im_end|>]");
}

TEST(ChatMask, OfAnEmptyMessageOfWeightZeroNothingCounts) {
  const Json chat = {user("q"), assistant("", 0), assistant("two")};
  EXPECT_EQ(
      ended_counting("{{ m.content }}", messages(chat)),
      "u:q<|im_end|>a:<|im_end|>a:[two<|im_end|>]");
  EXPECT_EQ(
      ended_counting("{{ m.content }}", messages(chat), LossOn::kAll),
      "u[:q<|im_end|>a:]<|im_end|>[a:two<|im_end|>]");
}

TEST(ChatMask, AnEmptyTextBeginsNoTurnThatShowsMore) {
  const auto shown = [](const char* thoughts, const char* content) {
    Json message = assistant(content);
    message["thoughts"] = thoughts;
    return ended_counting(
        "({{ m.thoughts }}){{ m.content }}", messages({user("q"), message}));
  };
  const std::string front = "u:()q<|im_end|>a:(";
  EXPECT_EQ(shown("", "so"), front + ")[so<|im_end|>]");
  EXPECT_EQ(shown("", ""), front + ")[<|im_end|>]");
  EXPECT_EQ(shown("why", ""), front + "[why)<|im_end|>]");
}

TEST(ChatMask, AnEmptyMessageWithoutASpecialTokenBehindItIsEndless) {
  const ChatTemplate chat(kNoBlocks, "t.jinja", Json::object());
  const auto tokenizer = load_tokenizer("bytes");
  const ChatTokens tokens =
      ChatEncoder(*tokenizer, &chat, {})
          .encode(read_conversation(messages({user("q"), assistant("")})));
  EXPECT_EQ(tokens.endless_turns, 1);
  EXPECT_EQ(
      bytes_counting(kNoBlocks, messages({user("q"), assistant("")})), "q;;");
}

TEST(ChatMask, PrintedListsAreOfTheirMessage) {
  const Json parts = Json::array({{{"type", "text"}, {"text", "a"}}});
  const std::string printed = "[{'type': 'text', 'text': 'a'}]";
  EXPECT_EQ(
      bytes_counting(kBlocks, messages({user("q"), assistant(parts)})),
      "q[" + printed + ";]");
  EXPECT_EQ(
      bytes_counting(kNoBlocks, messages({user("q"), assistant(parts)})),
      "q;[{'type': ['text', 'text': 'a']}];");
}

TEST(ChatMask, AMessageOfWeightZeroNeverCounts) {
  const Json chat = {user("q"), assistant("one", 0), user("r")};
  Json last = chat;
  last.push_back(assistant("two"));
  EXPECT_EQ(
      bytes_counting(kNoBlocks, messages(last), LossOn::kAll),
      "q[;]one[;r;two;]");
  EXPECT_EQ(
      bytes_counting(kBlocks, messages(last), LossOn::kAll), "qone;[rtwo;]");
  EXPECT_EQ(
      bytes_counting(
          kNoBlocks,
          messages({user("q"), assistant("one"), assistant("two", 0)}),
          LossOn::kLast),
      "q;one;two;");
  EXPECT_EQ(
      bytes_counting(
          kNoBlocks,
          messages(
              {user("q"), assistant("one", false), assistant("two", 1.0)})),
      "q;one;[two];");
}

TEST(ChatMask, OtherWeightsAreNamed) {
  for (const Json& weight : {Json(0.5), Json("0"), Json(2), Json(-1)}) {
    EXPECT_THAT(
        message_of<DataError>([&] {
          read_conversation(messages({user("q"), assistant("one", weight)}));
        }),
        AllOf(
            HasSubstr("/messages/1 has the weight " + weight.dump()),
            HasSubstr("0 (it does not count)")));
  }
}

TEST(ChatMask, AMemberThatIsNullCallsNoTools) {
  Json message = assistant("a");
  message["tool_calls"] = nullptr;
  EXPECT_EQ(
      bytes_counting(kNoBlocks, messages({user("q"), message})), "q;[a];");
  message["content"] = nullptr;
  EXPECT_THAT(
      message_of<DataError>([&] {
        read_conversation(messages({user("q"), message}));
      }),
      HasSubstr("/messages/1 has no content"));
}

// "fox  over" is f, ox, a space, " over"; "fox  " alone f, ox, two spaces.
// char_to_token() of the tokenizers library says the same.
TEST(ChatMask, TokensThatOverlapATurnCountAsTheWholeTextHasThem) {
  const auto golden = [](const std::string& name) {
    return load_tokenizer(
        BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/" + name + ".json");
  };
  auto tokenizer = golden("smollm_like");
  const auto in_turn = [&](const std::string& front,
                           const std::string& content,
                           const std::string& back) {
    const ChatTemplate chat(
        front +
            "{% for m in messages %}{% generation %}{{ m.content }}"
            "{% endgeneration %}{% endfor %}" +
            back,
        "t.jinja",
        Json::object());
    return counting(
        *tokenizer, chat, messages(Json::array({assistant(content)})));
  };
  EXPECT_EQ(in_turn("fox  ", "over", ""), "fox [ over]");
  EXPECT_EQ(in_turn("the fox", "  ", "over"), "the fox[  over]");
  EXPECT_EQ(in_turn("the fox", " ", " over"), "the fox[ ] over");
  EXPECT_EQ(in_turn("the", " fox  ", "over"), "the[ fox  over]");
  EXPECT_EQ(
      in_turn("<|endoftext|>fox  ", "over", "<|endoftext|>"),
      "<|endoftext|>fox [ over]<|endoftext|>");
  const ChatTemplate none("", "t.jinja", Json::object());
  EXPECT_EQ(
      counting(*tokenizer, none, {{"prompt", "fox  "}, {"completion", "over"}}),
      "fox [ over]");
  // " a" and "tu"; the front alone has " at". Each token by itself shows no
  // space in front.
  for (const char* name : {"llama2_like", "mistral_like"}) {
    SCOPED_TRACE(name);
    tokenizer = golden(name);
    EXPECT_EQ(in_turn("the fox at", "u", ""), "thefoxa[tu]");
    EXPECT_EQ(in_turn("<s>the fox at", "u", ""), "<s>thefoxa[tu]");
  }
}

// What counts in the chosen and in the rejected one.
using Answers = std::pair<std::string, std::string>;

class ChatPairMask : public ::testing::Test {
 protected:
  Answers counting_of(const Json& record) const {
    const ChatTemplate chat(
        "{% for m in messages %}{{ m.role[0] }}: "
        "{% if m.is_plain %}<tool_call>{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}",
        "t.jinja",
        Json::object());
    const auto [chosen, rejected] = ChatEncoder(*tokenizer_, &chat, options_)
                                        .encode_pair(read_preference(record));
    return {shown(*tokenizer_, chosen), shown(*tokenizer_, rejected)};
  }
  Answers counting_of_texts(
      const char* prompt,
      const char* chosen,
      const char* rejected) const {
    return counting_of(
        {{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}});
  }
  Answers counting_of_messages(const Json& chosen, const Json& rejected) const {
    return counting_of(
        {{"prompt", Json::array({user("q")})},
         {"chosen", Json::array({chosen})},
         {"rejected", Json::array({rejected})}});
  }

  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(
      BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/qwen2_like.json");
  ChatTokensOptions options_{.end_id = tokenizer_->eos_id()};
};

// As in TRL's DPOTrainer: each text has first tokens in common with the prompt
// alone, and the smaller number of them is the prompt's in both.
TEST_F(ChatPairMask, BothAnswersCountFromOneTokenOn) {
  const std::string end = "<|endoftext|>]";
  // " fox" lies across the end of the prompt; the other answer has " f".
  const Answers fox{"the[ fox" + end, "the[ f x" + end};
  EXPECT_EQ(counting_of_texts("the f", "ox", " x"), fox);
  EXPECT_EQ(
      counting_of_texts("the f", " x", "ox"), Answers(fox.second, fox.first));
  EXPECT_EQ(counting_of({{"chosen", "the fox"}, {"rejected", "the f x"}}), fox);
  // " a" and "tu", and " at": as many tokens, but others.
  EXPECT_EQ(
      counting_of_texts("the fox at", "u", " x"),
      Answers("the fox[ atu" + end, "the fox[ at x" + end));
  // A space and " over", and two spaces.
  EXPECT_EQ(
      counting_of_texts("fox  ", "over", ""),
      Answers("fox[  over" + end, "fox[  " + end));
  EXPECT_EQ(
      counting_of_texts("the fox", " at", " over"),
      Answers("the fox[ at" + end, "the fox[ over" + end));
  options_.begin_id = tokenizer_->token_id("<|im_start|>");
  EXPECT_EQ(
      counting_of_texts("the f", "ox", " x"),
      Answers("<|im_start|>the[ fox" + end, "<|im_start|>the[ f x" + end));
}

TEST_F(ChatPairMask, TheFirstTokenOfAnAnswerWithoutAPromptDoesNotCount) {
  EXPECT_EQ(
      counting_of_texts("", "fox", "the"),
      Answers("f[ox<|endoftext|>]", "t[he<|endoftext|>]"));
  EXPECT_EQ(
      counting_of_texts("f", "ox", ""),
      Answers("f[ox<|endoftext|>]", "f[<|endoftext|>]"));
  EXPECT_EQ(
      counting_of_texts(" a", "t", " x"),
      Answers(" at[<|endoftext|>]", " a[ x<|endoftext|>]"));
}

TEST_F(ChatPairMask, AnswersOfMessagesCountFromOneTokenOn) {
  const std::string front = "u: q<|im_end|>a:";
  EXPECT_EQ(
      counting_of_messages(assistant("two"), assistant("\ntwo")),
      Answers(front + "[ two<|im_end|>]", front + "[ \ntwo<|im_end|>]"));
  EXPECT_EQ(
      counting_of_messages(assistant(""), assistant("two")),
      Answers(front + "[ <|im_end|>]", front + "[ two<|im_end|>]"));
}

TEST_F(ChatPairMask, BehindUnlikePromptsEachAnswerCountsByItself) {
  Json plain = assistant("two");
  plain["is_plain"] = true;
  const std::string front = "u: q<|im_end|>a:";
  EXPECT_EQ(
      counting_of_messages(plain, assistant("two")),
      Answers(
          front + " <tool_call>[two<|im_end|>]", front + "[ two<|im_end|>]"));
}

TEST_F(ChatPairMask, WhatCountsInAllIsNoMatterOfThePair) {
  options_.loss = LossOn::kAll;
  EXPECT_EQ(
      counting_of_texts("the f", "ox", " x"),
      Answers("t[he fox<|endoftext|>]", "t[he f x<|endoftext|>]"));
  // Of weight 0: nothing of the answer.
  EXPECT_EQ(
      counting_of_messages(assistant("\ntwo", 0), assistant("two")),
      Answers(
          "u[: q<|im_end|>a: ]\ntwo<|im_end|>",
          "u[: q<|im_end|>a: two<|im_end|>]"));
}

}  // namespace
}  // namespace brigade
