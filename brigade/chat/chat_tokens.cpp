#include "brigade/chat/chat_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using jinja::Mark;
using Messages = nlohmann::ordered_json;

bool has_weight(const Messages& message) {
  const Messages weight = message.value("weight", Messages());
  return weight != Messages(0) && weight != Messages(false);
}

// Whether it is a block of one of `messages`: that of which it shows something,
// else that which the template is at. Of a block of which neither is known:
// `otherwise`.
bool is_of(
    const Mark& block,
    const std::vector<Mark>& marks,
    const std::set<int32_t>& messages,
    bool otherwise) {
  bool shows_any = false;
  for (const Mark& mark : marks) {
    if (mark.kind != Mark::Kind::kContent || mark.begin >= block.end ||
        mark.end <= block.begin)
      continue;
    if (messages.count(mark.message) > 0)
      return true;
    shows_any = true;
  }
  if (shows_any)
    return false;
  return block.message == Mark::kNoMessage ? otherwise
                                           : messages.count(block.message) > 0;
}

}  // namespace

ChatEncoder::Turns ChatEncoder::turns_of(
    const Conversation& conversation) const {
  const LossOn loss = loss_of(conversation);
  Turns turns;
  const Messages& messages = conversation.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant")
      continue;
    if (loss == LossOn::kLast)
      turns.left_out.merge(turns.learned);
    const bool is_learned =
        has_weight(messages[i]) &&
        (loss != LossOn::kCompletion || i >= conversation.prompt_messages);
    (is_learned ? turns.learned : turns.left_out)
        .insert(static_cast<int32_t>(i));
  }
  return turns;
}

LossOn ChatEncoder::loss_of(const Conversation& conversation) const {
  const bool has_prompt =
      conversation.form == ConversationForm::kPromptCompletion;
  if (!options_.loss) {
    if (conversation.form == ConversationForm::kText)
      return LossOn::kAll;
    return has_prompt ? LossOn::kCompletion : LossOn::kAssistant;
  }
  const LossOn loss = *options_.loss;
  const bool fits =
      loss == LossOn::kAll ||
      (loss == LossOn::kCompletion ? has_prompt
                                   : !conversation.messages.empty());
  if (!fits)
    throw DataError(fmt::format(
        "--loss {} says nothing about the form {}",
        to_string(loss),
        to_string(conversation.form)));
  return loss;
}

ChatTokens ChatEncoder::encode(const Conversation& conversation) const {
  return conversation.messages.empty() ? encode_text(conversation)
                                       : encode_chat(conversation);
}

std::pair<ChatTokens, ChatTokens> ChatEncoder::encode_pair(
    const ConversationPair& pair) const {
  std::pair<ChatTokens, ChatTokens> answers{
      encode(pair.chosen), encode(pair.rejected)};
  auto& [chosen, rejected] = answers;
  if (chosen.prompt != rejected.prompt)
    return answers;
  const auto differ = std::mismatch(
      chosen.ids.begin(),
      chosen.ids.end(),
      rejected.ids.begin(),
      rejected.ids.end());
  const auto common = static_cast<size_t>(differ.first - chosen.ids.begin());
  const size_t prompt_tokens =
      std::min({chosen.prompt_tokens, rejected.prompt_tokens, common});
  for (ChatTokens* answer : {&chosen, &rejected}) {
    // The first token has no token before it.
    for (size_t i = std::max<size_t>(prompt_tokens, 1);
         i < answer->prompt_tokens;
         ++i)
      answer->counts[i] = 1;
    answer->prompt_tokens = prompt_tokens;
  }
  return answers;
}

ChatEncoder::Encoded ChatEncoder::encoded(std::string text) const {
  Encoded result{std::move(text), {}, {}};
  result.ids = tokenizer_.encode(result.text, {.places = &result.places});
  return result;
}

ChatEncoder::Front ChatEncoder::front_of(const Encoded& whole, size_t at)
    const {
  if (at == 0)
    return {};
  auto place = std::partition_point(
      whole.places.begin(), whole.places.end(), [&](const auto& each) {
        return each.begin < at;
      });
  const size_t end =
      place == whole.places.end() ? whole.ids.size() : place->token;
  if (place != whole.places.end() && place->begin == at)
    return {end, end};
  // One that lies across `at` is not a token of the front.
  while (place != whole.places.begin() && std::prev(place)->end > at)
    --place;
  const AddedTokenPlace from =
      place == whole.places.begin() ? AddedTokenPlace{} : *std::prev(place);
  if (const auto front = shown_front(whole, from, end, at))
    return *front;
  const std::vector<int32_t> last = tokenizer_.encode(
      std::string_view(whole.text).substr(from.begin, at - from.begin));
  const auto first =
      whole.ids.begin() + static_cast<std::ptrdiff_t>(from.token);
  // Where a token lies across the place, it is the first that differs.
  const auto differs =
      std::mismatch(last.begin(), last.end(), first, whole.ids.end());
  const auto common = static_cast<size_t>(differs.second - whole.ids.begin());
  return {common, common + (differs.first == last.end() ? 0 : 1)};
}

std::optional<ChatEncoder::Front> ChatEncoder::shown_front(
    const Encoded& whole,
    const AddedTokenPlace& from,
    size_t end,
    size_t at) const {
  size_t token = from.end > 0 ? from.token + 1 : 0;
  size_t byte = from.end;
  size_t step = 64;
  while (byte < at) {
    const std::string_view rest = std::string_view(whole.text).substr(byte);
    size_t next = std::min(token + step, end);
    // A last character may need the tokens of 3 more bytes.
    const size_t most = std::min(next + 3, end);
    std::string shown;
    // Decoders that drop the space in front of a text are given a token more;
    // but behind an added token the space may be one that was put there.
    const auto is_shown = [&] {
      for (const size_t first : {token == 0 ? 0 : token - 1, token}) {
        const auto ids = std::span(whole.ids).subspan(first, next - first);
        const std::string front = tokenizer_.decode(ids.first(token - first));
        shown = tokenizer_.decode(ids);
        if (!shown.starts_with(front))
          continue;
        shown.erase(0, front.size());
        if (!shown.empty() && rest.starts_with(shown))
          return true;
      }
      return false;
    };
    for (;; ++next) {
      if (is_shown())
        break;
      if (next == most)
        return std::nullopt;
    }
    if (byte + shown.size() > at && step == 1)
      return Front{token, next};
    if (byte + shown.size() > at) {
      step /= 8;
      continue;
    }
    token = next;
    byte += shown.size();
  }
  return Front{token, token};
}

ChatTokens ChatEncoder::encode_text(const Conversation& conversation) const {
  const LossOn loss = loss_of(conversation);
  ChatTokens result;
  Encoded whole = encoded(conversation.text);
  if (loss == LossOn::kCompletion) {
    result.prompt_tokens = front_of(whole, conversation.prompt_bytes).ended;
    result.prompt = whole.text.substr(0, conversation.prompt_bytes);
  }
  result.ids = std::move(whole.ids);
  result.counts.assign(result.ids.size(), 1);
  std::fill_n(result.counts.begin(), result.prompt_tokens, uint8_t{0});
  if (result.ids.empty())
    return result;
  if (options_.begin_id) {
    result.ids.insert(result.ids.begin(), *options_.begin_id);
    result.counts.insert(result.counts.begin(), 0);
    result.prompt_tokens += loss == LossOn::kCompletion ? 1 : 0;
  }
  if (options_.end_id && result.ids.back() != *options_.end_id) {
    result.ids.push_back(*options_.end_id);
    result.counts.push_back(1);
  }
  result.counts.front() = 0;
  return result;
}

std::vector<ChatEncoder::Range> ChatEncoder::ranges_of(
    const Conversation& conversation,
    const RenderedChat& chat,
    const ChatTemplate& source) const {
  const bool learns_all = loss_of(conversation) == LossOn::kAll;
  const Turns turns = turns_of(conversation);
  const std::set<int32_t>& chosen = learns_all ? turns.left_out : turns.learned;
  std::vector<Range> ranges;
  if (chosen.empty())
    return ranges;
  if (source.has_generation()) {
    for (const Mark& block : chat.marks) {
      if (block.kind != Mark::Kind::kGeneration ||
          !is_of(block, chat.marks, chosen, turns.left_out.empty()))
        continue;
      if (!ranges.empty() && ranges.back().end == block.begin)
        ranges.back().end = block.end;
      else
        ranges.push_back({block.begin, block.end, true});
    }
    return ranges;
  }
  std::map<int32_t, Range> of_message;
  for (const Mark& mark : chat.marks) {
    if (chosen.count(mark.message) == 0)
      continue;
    const bool calls_tools =
        !conversation.messages[static_cast<size_t>(mark.message)]
             .value("tool_calls", Messages())
             .empty();
    if (calls_tools && !learns_all)
      throw DataError(fmt::format(
          "/messages/{} calls tools, and the template '{}' does not say with "
          "{{% generation %}} what of that a model writes: give one that does "
          "with --template FILE, or learn from all tokens with --loss all",
          mark.message,
          source.name()));
    const auto [place, is_new] = of_message.try_emplace(
        mark.message, Range{mark.begin, mark.end, false});
    Range& range = place->second;
    // An empty text begins a turn only where nothing else does: the last one.
    range.begin = range.begin == range.end ? mark.begin
                                           : std::min(range.begin, mark.begin);
    range.end = std::max(range.end, mark.end);
  }
  for (const auto& [message, range] : of_message)
    ranges.push_back(range);
  return ranges;
}

bool ChatEncoder::is_special(int32_t id) const {
  return tokenizer_.decode(std::span(&id, 1), {.skip_special_tokens = true})
             .empty() &&
         !tokenizer_.decode(std::span(&id, 1)).empty();
}

bool ChatEncoder::is_blank(int32_t id) const {
  return tokenizer_.decode(std::span(&id, 1)).find_first_not_of(" \t\n") ==
         std::string::npos;
}

size_t ChatEncoder::mark(
    const Encoded& whole,
    const Range& range,
    uint8_t value,
    ChatTokens& result) const {
  const bool is_empty = range.begin == range.end;
  const Front front = front_of(whole, range.begin);
  // A token that lies across the begin or the end belongs to the turn, but to
  // no empty one.
  const size_t begin =
      std::min(is_empty ? front.begun : front.ended, result.ids.size());
  size_t end = begin;
  if (!is_empty)
    end = std::min(
        std::max(begin + 1, front_of(whole, range.end).begun),
        result.ids.size());
  size_t last = end;
  if (range.is_exact) {
    while (last > begin + 1 && is_blank(result.ids[last - 1]))
      --last;
    --last;
  } else {
    while (last < result.ids.size() && is_blank(result.ids[last]) &&
           !is_special(result.ids[last]))
      ++last;
  }
  if (last >= result.ids.size() || !is_special(result.ids[last]))
    result.endless_turns += value;
  else if (!range.is_exact)
    end = last + 1;
  std::fill(
      result.counts.begin() + static_cast<std::ptrdiff_t>(begin),
      result.counts.begin() + static_cast<std::ptrdiff_t>(end),
      value);
  return begin;
}

std::optional<int32_t> ChatEncoder::end_of_turn(
    const std::string& system) const {
  Conversation conversation;
  if (!system.empty())
    conversation.messages.push_back({{"role", "system"}, {"content", system}});
  for (const char* role : {"user", "assistant"})
    conversation.messages.push_back({{"role", role}, {"content", "yes"}});
  const ChatTokens tokens = encode(conversation);
  for (size_t i = tokens.ids.size(); i > 0 && tokens.endless_turns == 0; --i) {
    if (tokens.counts[i - 1] != 0 && is_special(tokens.ids[i - 1]))
      return tokens.ids[i - 1];
  }
  return std::nullopt;
}

ChatTokens ChatEncoder::encode_chat(const Conversation& conversation) const {
  ChatOptions options = options_.chat;
  if (!conversation.tools.is_null())
    options.tools = conversation.tools;
  options.variables.update(conversation.variables);
  if (template_ == nullptr)
    throw ConfigError(
        "[chat] a conversation of messages needs a chat template, and the "
        "tokenizer has no chat template: put a chat_template.jinja beside its "
        "tokenizer.json, or give one with --template FILE");
  const RenderedChat chat = template_->render(conversation.messages, options);
  const Encoded whole = encoded(chat.text);
  ChatTokens result;
  result.ids = whole.ids;
  const bool learns_all = loss_of(conversation) == LossOn::kAll;
  result.counts.assign(result.ids.size(), learns_all ? 1 : 0);
  const ChatTemplate& source = template_->for_tools(options.tools);
  const std::vector<Range> ranges = ranges_of(conversation, chat, source);
  for (const Range& range : ranges) {
    const size_t first = mark(whole, range, learns_all ? 0 : 1, result);
    if (learns_all || &range != &ranges.front())
      continue;
    result.prompt = whole.text.substr(0, range.begin);
    result.prompt_tokens = first;
  }
  if (!result.counts.empty())
    result.counts.front() = 0;
  return result;
}

}  // namespace brigade
