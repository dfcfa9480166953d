#include "brigade/tokenizer/added_tokens.h"

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/tokenizer/unicode.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

size_t previous_character(std::string_view text, size_t at) {
  do
    --at;
  while (is_utf8_continuation(text[at]));
  return at;
}

bool word_character_before(std::string_view text, size_t at) {
  return at > 0 &&
         is_word_character(utf8_code_point(text, previous_character(text, at)));
}

bool word_character_at(std::string_view text, size_t at) {
  return at < text.size() && is_word_character(utf8_code_point(text, at));
}

}  // namespace

void AddedTokenMatcher::add(std::string_view pattern, const AddedToken& token) {
  BRIGADE_ASSERT(!pattern.empty(), "added token {}", token.id);
  int32_t node = 0;
  for (const char c : pattern) {
    int32_t next = child(node, c);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_[node].children.emplace_back(c, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  begins_[static_cast<unsigned char>(pattern[0])] = true;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenMatcher::child(int32_t node, char c) const {
  for (const auto& [byte, next] : nodes_[node].children) {
    if (byte == c)
      return next;
  }
  return -1;
}

bool AddedTokenMatcher::find(std::string_view input, size_t from, Match& match)
    const {
  if (tokens_.empty())
    return false;
  for (size_t begin = from; begin < input.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(input[begin])])
      continue;
    int32_t node = 0;
    match.token = -1;
    for (size_t at = begin; at < input.size(); ++at) {
      node = child(node, input[at]);
      if (node < 0)
        break;
      if (nodes_[node].token >= 0) {
        match = {.begin = begin, .end = at + 1, .token = nodes_[node].token};
      }
    }
    if (match.token >= 0)
      return true;
  }
  return false;
}

bool AddedTokenMatcher::widen(
    std::string_view input,
    size_t covered,
    Match& match) const {
  const AddedToken& token = tokens_[match.token];
  if (token.single_word && (word_character_before(input, match.begin) ||
                            word_character_at(input, match.end)))
    return false;
  if (token.lstrip) {
    size_t begin = match.begin;
    while (begin > 0) {
      const size_t before = previous_character(input, begin);
      if (!is_white_space(utf8_code_point(input, before)))
        break;
      begin = before;
    }
    match.begin = std::max(begin, covered);
  }
  if (token.rstrip) {
    while (match.end < input.size() &&
           is_white_space(utf8_code_point(input, match.end)))
      match.end += utf8_length(input[match.end]);
  }
  return true;
}

}  // namespace brigade
