// Finding which tokens count from the last added token before a mark on gives
// the same result as searching from the start of the text.
#include "brigade/chat/chat_tokens.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {
namespace {

using Json = nlohmann::ordered_json;

enum class Places { kGiven, kNone };

// Counts the encoded bytes; can hide the places of added tokens.
class WatchedTokenizer final : public Tokenizer {
 public:
  WatchedTokenizer(const std::string& name, Places places)
      : tokenizer_(load_tokenizer(
            BRIGADE_SOURCE_DIR "/tests/tokenizer/goldens/" + name)),
        places_(places) {}

  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options) const override {
    encoded_bytes_ += text.size();
    return places_ == Places::kGiven
               ? tokenizer_->encode(text, options)
               : tokenizer_->encode(
                     text, {.special_tokens = options.special_tokens});
  }
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options)
      const override {
    return tokenizer_->decode(ids, options);
  }
  int64_t vocab_size() const override { return tokenizer_->vocab_size(); }
  std::optional<int32_t> bos_id() const override {
    return tokenizer_->bos_id();
  }
  std::optional<int32_t> eos_id() const override {
    return tokenizer_->eos_id();
  }
  std::optional<std::string> token_text(int32_t id) const override {
    return tokenizer_->token_text(id);
  }
  std::optional<int32_t> token_id(std::string_view text) const override {
    return tokenizer_->token_id(text);
  }
  std::string description() const override { return tokenizer_->description(); }

  size_t encoded_bytes() const { return encoded_bytes_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  Places places_;
  mutable size_t encoded_bytes_ = 0;
};

ChatTemplate template_of(const std::string& begin, const std::string& end) {
  return {
      "{% for m in messages %}{{ '" + begin +
          "' + m.role + '\\n' + m.content + '" + end + "\\n' }}{% endfor %}",
      "t",
      Json::object()};
}

// Parts that begin at, end at and cut tokens of both tokenizers.
Conversation some_conversation(std::mt19937& random, int turns) {
  static const std::vector<std::string> kParts = {
      "one",
      " two",
      "\n",
      "  ",
      "fox",
      "[L]",
      "[R]",
      "<s>",
      "<mask>",
      "<|im_end|>",
      "<|im_start|>",
      "<tool_call>",
      "naïve",
      "日本",
      "<|im",
      "_end|>",
      "",
      "12345"};
  Conversation conversation{.form = ConversationForm::kMessages};
  conversation.messages = Json::array();
  for (int turn = 0; turn < turns; ++turn) {
    for (const char* role : {"user", "assistant"}) {
      std::string content;
      for (auto parts = random() % 7; parts > 0; --parts)
        content += kParts[random() % kParts.size()];
      conversation.messages.push_back({{"role", role}, {"content", content}});
    }
  }
  return conversation;
}

TEST(ChatEncoder, MarksFromAddedTokensOnAreThoseFromTheBeginOn) {
  for (const char* name : {"qwen2_like.json", "roberta_like.json"}) {
    const WatchedTokenizer tokenizer(name, Places::kGiven);
    const WatchedTokenizer naive(name, Places::kNone);
    for (const auto& [begin, end] :
         std::vector<std::pair<std::string, std::string>>{
             {"<|im_start|>", "<|im_end|>"},
             {"<s>", "</s>"},
             {"[L]", "[R]"},
             {" fox ", "<mask> "}}) {
      const ChatTemplate chat = template_of(begin, end);
      const ChatEncoder encoder(tokenizer, &chat, {});
      const ChatEncoder expected(naive, &chat, {});
      std::mt19937 random(7);
      for (int round = 0; round < 60; ++round) {
        const Conversation conversation = some_conversation(random, 3);
        const ChatTokens tokens = encoder.encode(conversation);
        const ChatTokens all = expected.encode(conversation);
        ASSERT_EQ(tokens.ids, all.ids);
        ASSERT_EQ(tokens.counts, all.counts)
            << name << begin << conversation.messages.dump();
        ASSERT_EQ(tokens.endless_turns, all.endless_turns);
      }
    }
  }
}

TEST(ChatEncoder, EncodesALongConversationAFewTimes) {
  const WatchedTokenizer tokenizer("qwen2_like.json", Places::kGiven);
  const ChatTemplate chat = template_of("<|im_start|>", "<|im_end|>");
  const ChatEncoder encoder(tokenizer, &chat, {});
  std::mt19937 random(7);
  const Conversation conversation = some_conversation(random, 300);
  encoder.encode(conversation);
  EXPECT_LE(
      tokenizer.encoded_bytes(),
      4 * chat.render(conversation.messages).text.size());
}

}  // namespace
}  // namespace brigade
