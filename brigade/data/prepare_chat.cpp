#include "brigade/data/prepare_chat.h"

#include <fmt/format.h>

#include <span>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/data/megatron_writer.h"

namespace brigade {
namespace {

constexpr std::string_view kByteOrderMarkOfChats = "\xEF\xBB\xBF";

nlohmann::ordered_json parse_line(std::string_view line) {
  try {
    return nlohmann::ordered_json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    throw DataError(fmt::format(
        "the line is no JSON object, from its byte {} on; --chat takes one "
        "conversation per line (jq -c '.[]' makes such lines of a list)",
        error.byte));
  }
}

void add_conversation(
    const ChatEncoder& encoder,
    std::string_view line,
    const PrepareChatOptions& options,
    TokenType type,
    EncodedChats& result) {
  const Conversation conversation =
      read_conversation(parse_line(line), options.form);
  ChatTokens tokens = encoder.encode(conversation);
  ++result.counts.forms[static_cast<size_t>(conversation.form)];
  const auto most = static_cast<size_t>(options.max_tokens);
  if (most > 0 && tokens.ids.size() > most) {
    if (options.too_long == TooLong::kRefuse)
      throw DataError(fmt::format(
          "the conversation has {} tokens, more than --max-tokens {}; skip or "
          "cut such ones with --too-long",
          tokens.ids.size(),
          most));
    ++result.counts.too_long;
    if (options.too_long == TooLong::kSkip)
      return;
    tokens.ids.resize(most);
    tokens.counts.resize(most);
  }
  if (tokens.counting() == 0) {
    ++result.counts.without_targets;
    return;
  }
  result.counts.counting_tokens += static_cast<uint64_t>(tokens.counting());
  result.counts.endless_turns += static_cast<uint64_t>(tokens.endless_turns);
  EncodedBlock& block = result.block;
  append_tokens(type, tokens.ids, block.tokens);
  block.counts.insert(
      block.counts.end(), tokens.counts.begin(), tokens.counts.end());
  block.pieces.push_back({tokens.ids.size(), true});
  block.text_bytes += line.size();
}

}  // namespace

void ChatCounts::add(const ChatCounts& other) {
  for (size_t i = 0; i < forms.size(); ++i)
    forms[i] += other.forms[i];
  counting_tokens += other.counting_tokens;
  too_long += other.too_long;
  without_targets += other.without_targets;
  endless_turns += other.endless_turns;
}

EncodedChats encode_chat_block(
    const ChatEncoder& encoder,
    const TextBlock& block,
    const TextFile& file,
    const PrepareChatOptions& options,
    BadLines bad_lines,
    TokenType type) {
  EncodedChats result;
  result.block.file = block.file;
  result.block.last_of_file = block.last_of_file;
  std::string_view rest = block.text;
  if (block.offset == 0 && rest.starts_with(kByteOrderMarkOfChats))
    rest.remove_prefix(kByteOrderMarkOfChats.size());
  for (uint64_t number = block.line; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      continue;
    try {
      add_conversation(encoder, line, options, type, result);
    } catch (const DataError& error) {
      const std::string message = fmt::format(
          "[{}] at line {}: {}", file.path.string(), number, error.what());
      if (bad_lines == BadLines::kRefuse)
        throw DataError(message);
      result.block.bad_lines.push_back(message);
    }
  }
  return result;
}

}  // namespace brigade
