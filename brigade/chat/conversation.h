// Conversations in the forms that people have them in, one JSON object each.
//
//   messages           {"messages": [{"role", "content", ...}], "tools"?,
//                      "chat_template_kwargs"?}
//   sharegpt           {"conversations": [{"from", "value"}], "system"?}
//   alpaca             {"instruction", "input"?, "output", "system"?,
//                       "history"?: [[question, answer]]}
//   prompt_completion  {"prompt", "completion"}, two texts or two lists of
//                      messages
//   text               {"text"}
//   preference         {"prompt"?, "chosen", "rejected"}, texts or lists of
//                      messages; without a prompt, what both begin with
//
// "weight" of a message is 0 or 1, also false or true. The roles human, gpt and
// their like become user and assistant. An Alpaca input follows the instruction
// on a line of its own, as in LLaMA-Factory.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/options/choice.h"

namespace brigade {

enum class ConversationForm {
  kMessages,
  kShareGpt,
  kAlpaca,
  kPromptCompletion,
  kText,
  kPreference,
};

template <>
inline constexpr auto kChoices<ConversationForm> = std::array{
    Choice{ConversationForm::kMessages, "messages"},
    Choice{ConversationForm::kShareGpt, "sharegpt"},
    Choice{ConversationForm::kAlpaca, "alpaca"},
    Choice{ConversationForm::kPromptCompletion, "prompt_completion"},
    Choice{ConversationForm::kText, "text"},
    Choice{ConversationForm::kPreference, "preference"}};

struct Conversation {
  ConversationForm form = ConversationForm::kMessages;
  // [{"role", "content"}]; empty where there is only text.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  size_t prompt_messages = 0;    // of kPromptCompletion: those of the prompt
  nlohmann::ordered_json tools;  // null: none
  // What the template reads; it wins over what is given for all conversations.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::string text;         // without a template
  size_t prompt_bytes = 0;  // of kPromptCompletion: text's first ones
};

// The form that the members of `record` show; std::nullopt: none of them.
std::optional<ConversationForm> detect_form(
    const nlohmann::ordered_json& record);

// `form`: what it must be; absent: as detected. Throws DataError that says what
// is wrong, without a place. Not of kPreference.
Conversation read_conversation(
    const nlohmann::ordered_json& record,
    std::optional<ConversationForm> form = std::nullopt);

// One prompt with two answers, each of the form kPromptCompletion.
struct ConversationPair {
  Conversation chosen;
  Conversation rejected;
};

// Reads a record of the form kPreference. Throws DataError likewise.
ConversationPair read_preference(const nlohmann::ordered_json& record);

}  // namespace brigade
