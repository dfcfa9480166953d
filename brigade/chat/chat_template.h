// A tokenizer's chat template: from a conversation to the text that a model was
// trained to continue.
//
// Templates are programs in Jinja's language. This is an engine of our own for
// the part of it that chat templates use, compared with transformers' renderer;
// what it does not know is an error that names the template's line, never a
// text that differs. It needs no Python.
//
//   const auto chat = ChatTemplate::load("models/smollm2");
//   const RenderedChat text = chat.render(
//       R"([{"role": "user", "content": "Hello"}])"_json,
//       {.add_generation_prompt = true});
//   tokenizer->encode(text.text);   // which adds nothing: the template did
//
// Immutable; render() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/chat/syntax.h"
#include "brigade/chat/text.h"

namespace brigade {

struct ChatOptions {
  // Ends the text where the assistant's answer begins.
  bool add_generation_prompt = false;
  nlohmann::ordered_json tools;  // JSON schemas of functions; null: none
  // More names for the template: {"enable_thinking": false}.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  // What a template that prints the date takes it from: seconds since 1970.
  int64_t now = 0;
};

struct RenderedChat {
  std::string text;
  // Which bytes come from which message (its content, thoughts and calls of
  // tools, not its role), and which are in {% generation %} blocks.
  std::vector<jinja::Mark> marks;
};

class ChatTemplate {
 public:
  // The template of a tokenizer, by what load_tokenizer() takes: from
  // chat_template.jinja and additional_chat_templates/ beside it, else from
  // tokenizer_config.json. `name` is one of several; "": the default one, and
  // for conversations with tools the one named tool_use, if there is one.
  // Throws DataError when there is none.
  static ChatTemplate load(
      const std::string& tokenizer,
      const std::string& name = "");
  // The same, or std::nullopt when there is none.
  static std::optional<ChatTemplate> find(
      const std::string& tokenizer,
      const std::string& name = "");
  // The same with a template of a file in place of the tokenizer's.
  static ChatTemplate load_file(
      const std::filesystem::path& file,
      const std::string& tokenizer);
  // `special_tokens`: {"bos_token": "<s>", ...}; `name` is how errors call it.
  ChatTemplate(
      std::string source,
      std::string name,
      nlohmann::ordered_json special_tokens);

  // `messages`: [{"role": ..., "content": ...}, ...]. Throws DataError with the
  // template's line where it does not take them.
  RenderedChat render(
      const nlohmann::ordered_json& messages,
      const ChatOptions& options = {}) const;

  // The one that renders a conversation with these tools (null: without).
  // Throws DataError where it has something that is not supported.
  const ChatTemplate& for_tools(const nlohmann::ordered_json& tools) const;

  // Whether it says by {% generation %} what a model writes.
  bool has_generation() const;

  const std::string& source() const { return source_; }
  const std::string& name() const { return name_; }
  // The texts of the tokenizer's special tokens by name.
  const nlohmann::ordered_json& special_tokens() const {
    return special_tokens_;
  }

 private:
  std::string source_;
  std::string name_;
  nlohmann::ordered_json special_tokens_;
  std::shared_ptr<const jinja::Statements> statements_;
  std::shared_ptr<const ChatTemplate> with_tools_;  // null: the same
  std::string problem_with_tools_;  // "": none; else why it cannot be used
};

}  // namespace brigade
