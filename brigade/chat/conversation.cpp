#include "brigade/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/chat/record.h"

namespace brigade {
namespace {

using Json = nlohmann::ordered_json;

bool has_list(const Json& record, const char* key) {
  return record.contains(key) && record[key].is_array();
}

bool has_text(const Json& record, const char* key) {
  return record.contains(key) && record[key].is_string();
}

// Empty: none, as tables have it.
bool has_system(const Json& record) {
  return has_text(record, "system") &&
         !record["system"].get_ref<const std::string&>().empty();
}

Json parse_or_discard(const std::string& text) {
  try {
    return parse_record(text);
  } catch (const RecordSyntaxError&) {
    return Json(Json::value_t::discarded);
  }
}

// A list or an object, or the same as text, as tables have it; null where there
// is none.
Json structure_at(const Json& record, const char* key) {
  Json value = record.value(key, Json());
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    value = text.empty() ? Json() : parse_or_discard(text);
  }
  if (!value.is_null() && !value.is_structured())
    throw DataError(fmt::format(
        "'{}' is neither a structure nor the JSON text of one", key));
  return value;
}

// What a template is given beside the messages.
void read_template_inputs(const Json& record, Conversation& result) {
  result.tools = structure_at(record, "tools");
  result.variables = structure_at(record, "chat_template_kwargs");
  if (!result.tools.is_null() && !result.tools.is_array())
    throw DataError("'tools' is no list");
  if (result.variables.is_null())
    result.variables = Json::object();
  if (!result.variables.is_object())
    throw DataError("'chat_template_kwargs' is no object");
}

// What data sets call the roles.
std::string role_of(const std::string& name) {
  static const std::map<std::string_view, const char*> kRoles = {
      {"human", "user"},
      {"gpt", "assistant"},
      {"chatgpt", "assistant"},
      {"bing", "assistant"},
      {"bard", "assistant"},
      {"model", "assistant"},
      {"bot", "assistant"},
      {"observation", "tool"},
      {"function_response", "tool"}};
  const auto found = kRoles.find(name);
  return found == kRoles.end() ? name : found->second;
}

void add_message(Json& messages, const char* role, const Json& content) {
  messages.push_back({{"role", role}, {"content", content}});
}

const Json& text_at(const Json& record, const char* key) {
  if (!has_text(record, key))
    throw DataError(fmt::format("'{}' is not a string", key));
  return record[key];
}

// With "role" and "content", or "from" and "value".
Json read_messages(const Json& list, const char* key) {
  if (!list.is_array() || list.empty())
    throw DataError(fmt::format("'{}' is not a list of messages", key));
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Json message = list[i];
    if (message.is_object() && message.contains("from")) {
      message["role"] = message["from"];
      message["content"] = message.value("value", Json());
      message.erase("from");
      message.erase("value");
    }
    if (!message.is_object() || !has_text(message, "role"))
      throw DataError(fmt::format("/{}/{} has no role", key, i));
    message["role"] = role_of(message["role"].get<std::string>());
    if (message["role"] == "function_call")
      throw DataError(fmt::format(
          "/{}/{}: the role function_call is not supported; write the call as "
          "tool_calls of an assistant's message",
          key,
          i));
    if (message.value("content", Json()).is_null() &&
        message.value("tool_calls", Json()).empty())
      throw DataError(fmt::format("/{}/{} has no content", key, i));
    const Json weight = message.value("weight", Json(1));
    if (!weight.is_null() && !weight.is_boolean() && weight != Json(0) &&
        weight != Json(1))
      throw DataError(fmt::format(
          "/{}/{} has the weight {}, and only 0 (it does not count) and 1 (it "
          "does) are supported",
          key,
          i,
          weight.dump()));
    messages.push_back(std::move(message));
  }
  return messages;
}

Json alpaca_messages(const Json& record) {
  Json messages = Json::array();
  if (has_system(record))
    add_message(messages, "system", record["system"]);
  if (has_list(record, "history")) {
    for (const Json& turn : record["history"]) {
      if (!turn.is_array() || turn.size() != 2)
        throw DataError("'history' is not a list of question and answer");
      add_message(messages, "user", turn[0]);
      add_message(messages, "assistant", turn[1]);
    }
  }
  std::string question = text_at(record, "instruction").get<std::string>();
  const std::string input =
      has_text(record, "input") ? record["input"].get<std::string>() : "";
  if (!input.empty())
    question += (question.empty() ? "" : "\n") + input;
  add_message(messages, "user", question);
  add_message(messages, "assistant", text_at(record, "output"));
  return messages;
}

void read_prompt_completion(const Json& record, Conversation& result) {
  if (has_list(record, "prompt") && has_list(record, "completion")) {
    result.messages = read_messages(record["prompt"], "prompt");
    result.prompt_messages = result.messages.size();
    for (Json& message : read_messages(record["completion"], "completion"))
      result.messages.push_back(std::move(message));
    return;
  }
  if (!has_text(record, "prompt") || !has_text(record, "completion"))
    throw DataError(
        "'prompt' and 'completion' are neither two strings nor two lists of "
        "messages");
  result.text = record["prompt"].get<std::string>();
  result.prompt_bytes = result.text.size();
  result.text += record["completion"].get<std::string>();
}

// Messages that two answers without a prompt begin with; of each at least the
// last is its own.
size_t common_messages(const Json& chosen, const Json& rejected) {
  const size_t most = std::min(chosen.size(), rejected.size());
  size_t common = 0;
  while (common + 1 < most && chosen[common] == rejected[common])
    ++common;
  return common;
}

// Bytes that two texts begin with: whole characters, and no space at the end,
// which tokenizers join with the word behind it.
size_t common_bytes(const std::string& chosen, const std::string& rejected) {
  const auto differ = std::mismatch(
      chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  auto common = static_cast<size_t>(differ.first - chosen.begin());
  const auto is_inside_character = [&](const std::string& text) {
    return common < text.size() && is_utf8_continuation(text[common]);
  };
  while (common > 0 &&
         (is_inside_character(chosen) || is_inside_character(rejected)))
    --common;
  if (common > 0 && chosen[common - 1] == ' ')
    --common;
  return common;
}

// Whether one of the conversation's first messages says the text, but for white
// space around it.
bool begins_with_message(const Conversation& answer, const std::string& text) {
  const auto trimmed = [](const std::string& each) {
    const size_t begin = each.find_first_not_of(" \t\r\n");
    const size_t end = each.find_last_not_of(" \t\r\n");
    return begin == std::string::npos ? ""
                                      : each.substr(begin, end + 1 - begin);
  };
  const auto end = answer.messages.begin() +
                   static_cast<std::ptrdiff_t>(answer.prompt_messages);
  return std::any_of(answer.messages.begin(), end, [&](const Json& message) {
    return has_text(message, "content") &&
           trimmed(message["content"].get<std::string>()) == trimmed(text);
  });
}

Conversation answer_of_messages(
    const Json& record,
    const char* key,
    const Json& prompt,
    size_t common) {
  Conversation answer{.form = ConversationForm::kPromptCompletion};
  answer.messages = prompt;
  for (Json& message : read_messages(record[key], key))
    answer.messages.push_back(std::move(message));
  answer.prompt_messages = prompt.size() + common;
  read_template_inputs(record, answer);
  return answer;
}

}  // namespace

ConversationPair read_preference(const Json& record) {
  const bool has_prompt =
      record.is_object() && !record.value("prompt", Json()).is_null();
  const bool has_messages = has_prompt && has_list(record, "prompt");
  if (has_list(record, "chosen") && has_list(record, "rejected") &&
      (!has_prompt || has_messages || has_text(record, "prompt"))) {
    const Json prompt = has_messages ? read_messages(record["prompt"], "prompt")
                                     : Json(Json::array());
    const size_t common =
        has_messages ? 0
                     : common_messages(record["chosen"], record["rejected"]);
    ConversationPair pair{
        answer_of_messages(record, "chosen", prompt, common),
        answer_of_messages(record, "rejected", prompt, common)};
    // As a text it says once more what the answers begin with.
    if (has_prompt && !has_messages &&
        !begins_with_message(pair.chosen, record["prompt"].get<std::string>()))
      throw DataError(
          "'prompt' is a text, and 'chosen' and 'rejected' are messages that "
          "do not begin with it; write it as a list of messages");
    return pair;
  }
  if (!has_text(record, "chosen") || !has_text(record, "rejected") ||
      (has_prompt && !has_text(record, "prompt")))
    throw DataError(
        "'chosen', 'rejected' and, where there is one, 'prompt' are neither "
        "all texts nor all lists of messages; leave 'prompt' out where the "
        "other two begin with it");
  const std::string chosen = record["chosen"].get<std::string>();
  const std::string rejected = record["rejected"].get<std::string>();
  const std::string prompt =
      has_prompt ? record["prompt"].get<std::string>() : "";
  const size_t prompt_bytes =
      has_prompt ? prompt.size() : common_bytes(chosen, rejected);
  const auto answer = [&](const std::string& text) {
    Conversation result{.form = ConversationForm::kPromptCompletion};
    result.text = prompt + text;
    result.prompt_bytes = prompt_bytes;
    return result;
  };
  return {answer(chosen), answer(rejected)};
}

std::optional<ConversationForm> detect_form(const Json& record) {
  if (!record.is_object())
    return std::nullopt;
  if (record.contains("chosen") && record.contains("rejected"))
    return ConversationForm::kPreference;
  if (has_list(record, "messages"))
    return ConversationForm::kMessages;
  if (has_list(record, "conversations"))
    return ConversationForm::kShareGpt;
  if (record.contains("prompt") && record.contains("completion"))
    return ConversationForm::kPromptCompletion;
  if (has_text(record, "instruction") && has_text(record, "output"))
    return ConversationForm::kAlpaca;
  if (has_text(record, "text"))
    return ConversationForm::kText;
  return std::nullopt;
}

Conversation read_conversation(
    const Json& record,
    std::optional<ConversationForm> form) {
  if (!form)
    form = detect_form(record);
  if (!form || !record.is_object())
    throw DataError(
        "the object is no conversation: it has neither 'messages', nor "
        "'conversations', nor 'prompt' and 'completion', nor 'instruction' and "
        "'output', nor 'text', nor 'chosen' and 'rejected'");
  Conversation result;
  result.form = *form;
  switch (*form) {
    case ConversationForm::kMessages:
      result.messages =
          read_messages(record.value("messages", Json()), "messages");
      break;
    case ConversationForm::kShareGpt:
      result.messages =
          read_messages(record.value("conversations", Json()), "conversations");
      if (has_system(record) && result.messages[0]["role"] != "system")
        result.messages.insert(
            result.messages.begin(),
            Json{{"role", "system"}, {"content", record["system"]}});
      break;
    case ConversationForm::kAlpaca:
      result.messages = alpaca_messages(record);
      break;
    case ConversationForm::kPromptCompletion:
      read_prompt_completion(record, result);
      break;
    case ConversationForm::kText:
      result.text = text_at(record, "text").get<std::string>();
      break;
    case ConversationForm::kPreference:
      throw DataError("'chosen' and 'rejected' are two conversations");
  }
  if (!result.messages.empty())
    read_template_inputs(record, result);
  return result;
}

}  // namespace brigade
