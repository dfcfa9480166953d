#include "brigade/data/prepare_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "brigade/base/byte_order_mark.h"
#include "brigade/base/error.h"
#include "brigade/chat/record.h"
#include "brigade/data/megatron_writer.h"

namespace brigade {
namespace {

nlohmann::ordered_json parse_line(std::string_view line) {
  try {
    return parse_record(line);
  } catch (const RecordSyntaxError& error) {
    throw DataError(fmt::format(
        "the line is no JSON object, from its byte {} on; --chat takes one "
        "conversation per line, or one list of them",
        error.byte));
  }
}

// A table has every column in every row, and every member in every message.
void drop_nulls(nlohmann::ordered_json& value) {
  if (value.is_object()) {
    for (auto member = value.begin(); member != value.end();) {
      if (member->is_null())
        member = value.erase(member);
      else
        ++member;
    }
  }
  if (value.is_structured()) {
    for (nlohmann::ordered_json& each : value)
      drop_nulls(each);
  }
}

nlohmann::ordered_json parse_row(std::string_view line) {
  nlohmann::ordered_json row = parse_line(line);
  if (row.is_object() && row.size() == 1 && row.begin().key().empty())
    throw DataError(row.begin()->get<std::string>());
  drop_nulls(row);
  return row;
}

// Where a conversation stands in its file: a line of it, from 1 on.
std::string
place_of(const TextFile& file, const TextBlock& block, uint64_t line) {
  if (file.is_table)
    return fmt::format("row {}", line - 1);
  if (block.lines_before_list)
    return fmt::format("conversation {}", line - *block.lines_before_list);
  return fmt::format("line {}", line);
}

std::string message_of(
    const Error& error,
    const TextFile& file,
    const TextBlock& block,
    uint64_t line) {
  return fmt::format(
      "[{}] at {}: {}",
      file.path.string(),
      place_of(file, block, line),
      error.what());
}

// Tokens that may be kept, cut where that is asked for; none: it is counted as
// left out.
std::optional<ChatTokens> kept_within(
    ChatTokens tokens,
    const PrepareChatOptions& options,
    ChatCounts& counts) {
  const auto most = static_cast<size_t>(options.max_tokens);
  if (most > 0 && tokens.ids.size() > most) {
    if (options.too_long == TooLong::kRefuse)
      throw DataError(fmt::format(
          "the conversation has {} tokens, more than --max-tokens {}; skip or "
          "cut such ones with --too-long",
          tokens.ids.size(),
          most));
    ++counts.too_long;
    if (options.too_long == TooLong::kSkip)
      return std::nullopt;
    tokens.ids.resize(most);
    tokens.counts.resize(most);
  }
  if (std::ranges::find(tokens.counts, 1) == tokens.counts.end()) {
    ++counts.without_targets;
    return std::nullopt;
  }
  return tokens;
}

void add_tokens(
    const ChatTokens& tokens,
    TokenType type,
    EncodedChats& result) {
  result.counts.endless_turns += static_cast<uint64_t>(tokens.endless_turns);
  EncodedBlock& block = result.block;
  append_tokens(type, tokens.ids, block.tokens);
  block.counts.insert(
      block.counts.end(), tokens.counts.begin(), tokens.counts.end());
  block.pieces.push_back({tokens.ids.size(), true});
}

// Both answers, or neither.
bool add_pair(
    const ChatEncoder& encoder,
    const nlohmann::ordered_json& record,
    const PrepareChatOptions& options,
    TokenType type,
    EncodedChats& result) {
  auto answers = encoder.encode_pair(read_preference(record));
  const auto chosen =
      kept_within(std::move(answers.first), options, result.counts);
  const auto rejected =
      chosen ? kept_within(std::move(answers.second), options, result.counts)
             : std::nullopt;
  // Not before: a line that cannot be encoded is no pair.
  ++result.counts.forms[static_cast<size_t>(ConversationForm::kPreference)];
  if (!rejected)
    return false;
  if (chosen->ids == rejected->ids) {
    ++result.counts.equal_pairs;
    return false;
  }
  add_tokens(*chosen, type, result);
  add_tokens(*rejected, type, result);
  return true;
}

void add_record(
    const ChatEncoder& encoder,
    const TextFile& file,
    std::string_view line,
    const PrepareChatOptions& options,
    TokenType type,
    EncodedChats& result) {
  const nlohmann::ordered_json record =
      file.is_table ? parse_row(line) : parse_line(line);
  const auto form = options.form ? options.form : detect_form(record);
  if (form == ConversationForm::kPreference) {
    if (add_pair(encoder, record, options, type, result))
      result.block.text_bytes += line.size();
    return;
  }
  const Conversation conversation = read_conversation(record, options.form);
  const auto tokens =
      kept_within(encoder.encode(conversation), options, result.counts);
  ++result.counts.forms[static_cast<size_t>(conversation.form)];
  if (!tokens)
    return;
  add_tokens(*tokens, type, result);
  result.block.text_bytes += line.size();
}

}  // namespace

void ChatCounts::add(const ChatCounts& other) {
  for (size_t i = 0; i < forms.size(); ++i)
    forms[i] += other.forms[i];
  too_long += other.too_long;
  without_targets += other.without_targets;
  equal_pairs += other.equal_pairs;
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
  result.block.bytes_read = block.bytes_read;
  std::string_view rest = block.text;
  if (block.offset == 0 && rest.starts_with(kByteOrderMark))
    rest.remove_prefix(kByteOrderMark.size());
  for (uint64_t number = block.line; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos)
      continue;
    try {
      add_record(encoder, file, line, options, type, result);
    } catch (const ConfigError& error) {
      throw ConfigError(message_of(error, file, block, number));
    } catch (const DataError& error) {
      const std::string message = message_of(error, file, block, number);
      if (bad_lines == BadLines::kRefuse)
        throw DataError(message);
      result.block.bad_lines.push_back(message);
    }
  }
  return result;
}

}  // namespace brigade
