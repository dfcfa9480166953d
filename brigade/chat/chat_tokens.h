// A conversation's tokens, and which of them a model learns to predict.
//
// What counts is found in the rendered text by its marks, never as the
// difference of two renderings: templates change earlier turns when later ones
// come. Where a template says by {% generation %} what a model writes, that
// counts. Else it is what comes from an assistant's message, with the special
// token right behind it that ends the turn.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brigade/chat/chat_template.h"
#include "brigade/chat/conversation.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

enum class LossOn {
  kAssistant,   // every turn of the assistant
  kLast,        // the last one
  kCompletion,  // what follows the prompt, of kPromptCompletion
  kAll,         // every token but the first and those of weight 0
};

template <>
inline constexpr auto kChoices<LossOn> = std::array{
    Choice{LossOn::kAssistant, "assistant"},
    Choice{LossOn::kLast, "last"},
    Choice{LossOn::kCompletion, "completion"},
    Choice{LossOn::kAll, "all"}};

struct ChatTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counts;  // 1: a target, of each id
  // Turns that count but end without a special token: a model that learns from
  // them does not learn to stop.
  int64_t endless_turns = 0;
  // What stands in front of the turn that counts first, and how many tokens end
  // in it. Empty where all tokens or none count.
  std::string prompt;
  size_t prompt_tokens = 0;
};

struct ChatTokensOptions {
  // Absent: kCompletion of prompt and completion, kAll of text, else
  // kAssistant.
  std::optional<LossOn> loss;
  // Added to what is no conversation: to text, and prompt and completion.
  std::optional<int32_t> begin_id;
  std::optional<int32_t> end_id;
  ChatOptions chat;
};

// Immutable; safe to use from any thread. Tokenizer and template must outlive
// it; without a template (null) conversations of messages are refused.
class ChatEncoder {
 public:
  ChatEncoder(
      const Tokenizer& tokenizer,
      const ChatTemplate* chat_template,
      ChatTokensOptions options)
      : tokenizer_(tokenizer),
        template_(chat_template),
        options_(std::move(options)) {}

  // Throws DataError, without a place, for a conversation that the template
  // refuses or of which `loss` says nothing; ConfigError for one that needs a
  // template where there is none.
  ChatTokens encode(const Conversation& conversation) const;

  // Both answers, chosen and rejected, as encode() gives them, but that both
  // count from one token on, so that their probabilities have one condition:
  // where a token of one of them lies across the end of the prompt, or its end
  // is cut into other tokens, from the first such token on, as TRL's trainers
  // of preferences do. Where the template writes unlike prompts each counts by
  // itself.
  std::pair<ChatTokens, ChatTokens> encode_pair(
      const ConversationPair& pair) const;

  // The special token that ends an assistant's turn behind a message of the
  // user, with which the model says that it has finished; std::nullopt: the
  // template writes none. `system`: what stands in front, "": nothing. Throws
  // DataError as encode().
  std::optional<int32_t> end_of_turn(const std::string& system = "") const;

 private:
  // Bytes of the rendered text.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    bool is_exact = false;  // else a special token behind it counts too
  };
  // A text with its tokens, and where a part of it may be encoded alone.
  struct Encoded {
    std::string text;
    std::vector<int32_t> ids;
    std::vector<AddedTokenPlace> places;
  };
  // How many tokens of a text end in its front, and how many begin in it: they
  // differ where one lies across the end of the front.
  struct Front {
    size_t ended = 0;
    size_t begun = 0;
  };
  // The assistant's messages by their numbers.
  struct Turns {
    std::set<int32_t> learned;
    std::set<int32_t> left_out;  // of kAll those of weight 0
  };
  ChatTokens encode_text(const Conversation& conversation) const;
  ChatTokens encode_chat(const Conversation& conversation) const;
  LossOn loss_of(const Conversation& conversation) const;
  Turns turns_of(const Conversation& conversation) const;
  // What is learned; of kAll what is not.
  std::vector<Range> ranges_of(
      const Conversation& conversation,
      const RenderedChat& chat,
      const ChatTemplate& source) const;
  Encoded encoded(std::string text) const;
  // The first `at` bytes. Where the tokens do not show them (a normalizer
  // changed the text), what those from the last place before on have in common
  // with the tokens of the front alone, which is not exact: how a word is cut
  // may depend on what follows.
  Front front_of(const Encoded& whole, size_t at) const;
  // By the text that the tokens behind `from` show, up to the one at `end`:
  // many at a time, and those that reach over `at` one by one.
  std::optional<Front> shown_front(
      const Encoded& whole,
      const AddedTokenPlace& from,
      size_t end,
      size_t at) const;
  bool is_special(int32_t id) const;
  bool is_blank(int32_t id) const;
  // Returns the first token of the range.
  size_t mark(
      const Encoded& whole,
      const Range& range,
      uint8_t value,
      ChatTokens& result) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
  ChatTokensOptions options_;
};

}  // namespace brigade
