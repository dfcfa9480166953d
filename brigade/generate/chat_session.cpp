#include "brigade/generate/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/chat/chat_tokens.h"
#include "brigade/tokenizer/streaming_decoder.h"

namespace brigade {
namespace {

using Messages = nlohmann::ordered_json;

ChatTemplate load_template(
    const StoredModel& stored,
    const ChatSessionOptions& options) {
  const std::string& tokenizer = stored.tokenizer(options.text.tokenizer);
  return options.template_file.empty()
             ? ChatTemplate::load(tokenizer, options.template_name)
             : ChatTemplate::load_file(options.template_file, tokenizer);
}

// False where the last message's is the only turn.
bool drop_oldest_turn(Messages& messages) {
  const auto is_of_user = [](const Messages& message) {
    return message["role"] == "user";
  };
  const auto first = std::find_if(messages.begin(), messages.end(), is_of_user);
  const auto next = std::find_if(first + 1, messages.end(), is_of_user);
  if (next == messages.end())
    return false;
  messages.erase(first, next);
  return true;
}

// Tokens that need not be computed again. One is left, since an answer follows
// its logits.
size_t common_prefix(
    const std::vector<int64_t>& seen,
    const std::vector<int64_t>& prompt) {
  const auto differs =
      std::mismatch(seen.begin(), seen.end(), prompt.begin(), prompt.end());
  return std::min(
      static_cast<size_t>(differs.first - seen.begin()), prompt.size() - 1);
}

}  // namespace

ChatSession::ChatSession(
    const StoredModel& stored,
    const ChatSessionOptions& options,
    const TrainConfig& config,
    const ProcessMesh& mesh)
    : options_(options),
      positions_(stored.model().max_position_embeddings),
      tokenizer_(stored.open_tokenizer(options.text.tokenizer)),
      template_(load_template(stored, options)),
      rendering_{
          .add_generation_prompt = true,
          .tools = {},
          .variables = options.variables,
          .now = options.now},
      ends_(stored.end_tokens(*tokenizer_)),
      generator_(
          stored,
          config,
          mesh,
          {options.text.temperature, options.text.top_k, options.text.top_p}) {
  check_values(options_.text);
  ChatTokensOptions learning;
  learning.chat = rendering_;
  learning.chat.add_generation_prompt = false;
  const ChatEncoder encoder(*tokenizer_, &template_, std::move(learning));
  if (const auto end = encoder.end_of_turn(options_.system))
    ends_.insert(*end);
  reset();
}

void ChatSession::reset() {
  messages_ = Messages::array();
  if (!options_.system.empty())
    messages_.push_back({{"role", "system"}, {"content", options_.system}});
}

std::vector<int64_t> ChatSession::encode(const Messages& messages) const {
  const std::vector<int32_t> ids =
      tokenizer_->encode(template_.render(messages, rendering_).text);
  if (ids.empty())
    throw DataError(fmt::format(
        "[chat] the template '{}' makes no text of the conversation",
        template_.name()));
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> ChatSession::make_room(
    Messages& messages,
    ChatAnswer& answer) const {
  std::vector<int64_t> ids = encode(messages);
  const auto room = [&] {
    return positions_ - static_cast<int64_t>(ids.size());
  };
  const int64_t wanted = std::min(options_.text.max_tokens, positions_ / 4);
  while (room() < wanted && drop_oldest_turn(messages)) {
    ids = encode(messages);
    ++answer.dropped_turns;
  }
  if (room() < 1)
    throw DataError(fmt::format(
        "[chat] the message has {} tokens with what the template and the "
        "system text add, and the model {} positions for it and the answer; "
        "give a shorter one",
        ids.size(),
        positions_));
  return ids;
}

ChatAnswer ChatSession::answer(
    const std::string& message,
    const WritePiece& write,
    const IsStopped& is_stopped) {
  ChatAnswer answer;
  Messages messages = messages_;
  messages.push_back({{"role", "user"}, {"content", message}});
  const std::vector<int64_t> prompt = make_room(messages, answer);
  messages_ = std::move(messages);
  generate(prompt, write, is_stopped, answer);
  messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
  return answer;
}

void ChatSession::generate(
    const std::vector<int64_t>& prompt,
    const WritePiece& write,
    const IsStopped& is_stopped,
    ChatAnswer& answer) {
  using End = ChatAnswer::End;
  const size_t kept = common_prefix(seen_, prompt);
  generator_.resume(
      static_cast<int64_t>(kept),
      prompt_seed(static_cast<uint64_t>(options_.text.seed), answers_++));
  seen_.resize(kept);
  answer.prompt_tokens = static_cast<int64_t>(prompt.size());
  answer.kept_tokens = static_cast<int64_t>(kept);
  const int64_t room = positions_ - answer.prompt_tokens;
  const int64_t most = std::min(options_.text.max_tokens, room);
  StreamingDecoder decoder(*tokenizer_);
  const auto give = [&](const std::string& piece) {
    answer.text += piece;
    write(piece);
  };
  std::vector<int64_t> tokens(
      prompt.begin() + static_cast<std::ptrdiff_t>(kept), prompt.end());
  answer.end =
      most < options_.text.max_tokens ? End::kPositions : End::kMaxTokens;
  while (answer.generated_tokens < most) {
    if (is_stopped()) {
      answer.end = End::kStopped;
      break;
    }
    const int64_t next =
        generator_.next(torch::tensor(tokens).unsqueeze(0), {true}).front();
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    if (ends_.count(next) > 0) {
      answer.end = End::kEndToken;
      break;
    }
    give(decoder.push(static_cast<int32_t>(next)));
    ++answer.generated_tokens;
    tokens = {next};
  }
  give(decoder.finish());
}

}  // namespace brigade
