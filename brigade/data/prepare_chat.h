// Conversations to tokens and masks: what prepare() does with the lines of its
// files where PrepareOptions::chat is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/chat/chat_tokens.h"
#include "brigade/chat/conversation.h"
#include "brigade/data/prepare_encode.h"
#include "brigade/data/text_files.h"
#include "brigade/data/text_reader.h"
#include "brigade/data/token_format.h"
#include "brigade/options/choice.h"

namespace brigade {

// What becomes of a conversation that is longer than it may be.
enum class TooLong { kSkip, kCut, kRefuse };

template <>
inline constexpr auto kChoices<TooLong> = std::array{
    Choice{TooLong::kSkip, "skip"},
    Choice{TooLong::kCut, "cut"},
    Choice{TooLong::kRefuse, "refuse"}};

struct PrepareChatOptions {
  std::optional<ConversationForm> form;  // absent: as each line shows
  std::optional<LossOn> loss;            // absent: by the form
  // A template in place of the tokenizer's; empty: that one, or the one of its
  // several that has template_name.
  std::filesystem::path template_file;
  std::string template_name;
  int64_t max_tokens = 0;  // 0: any number
  TooLong too_long = TooLong::kSkip;
  // More names for the template, and the time it may tell.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  int64_t now = 0;
};

struct ChatCounts {
  std::array<uint64_t, kChoices<ConversationForm>.size()> forms{};
  uint64_t too_long = 0;         // skipped or cut
  uint64_t without_targets = 0;  // skipped: no token of theirs counts
  uint64_t equal_pairs = 0;      // skipped: chosen and rejected are one answer
  uint64_t endless_turns = 0;    // see ChatTokens

  void add(const ChatCounts& other);
  // Records of kPreference.
  uint64_t pairs() const {
    return forms[static_cast<size_t>(ConversationForm::kPreference)];
  }
};

struct EncodedChats {
  // One document per conversation, two per pair, with `counts`.
  EncodedBlock block;
  ChatCounts counts;
};

// Thread-safe. Throws DataError naming file and line.
EncodedChats encode_chat_block(
    const ChatEncoder& encoder,
    const TextBlock& block,
    const TextFile& file,
    const PrepareChatOptions& options,
    BadLines bad_lines,
    TokenType type);

}  // namespace brigade
