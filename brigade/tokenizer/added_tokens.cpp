#include "brigade/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>

#include "brigade/base/check.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

bool word_character_before(std::string_view text, size_t at) {
  return at > 0 && is_word_character(
                       utf8_code_point(text, utf8_character_before(text, at)));
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
  if (token.lstrip)
    match.begin = std::max(white_space_begin(input, match.begin), covered);
  if (token.rstrip)
    match.end = white_space_end(input, match.end);
  // Nothing may be left of one that strips on the left.
  return match.begin < match.end;
}

namespace {

std::string lower_ascii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z')
      c = static_cast<char>(c + ('a' - 'A'));
  }
  return lower;
}

}  // namespace

void AddedTokenCuts::add(std::string_view pattern, const AddedToken& token) {
  BRIGADE_ASSERT(!pattern.empty(), "added token {}", token.id);
  Strips& strips = patterns_[lower_ascii(pattern)];
  strips.left = strips.left || token.lstrip;
  strips.right = strips.right || token.rstrip;
  lengths_.push_back(pattern.size());
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
}

const AddedTokenCuts::Strips*
AddedTokenCuts::find(std::string_view text, size_t begin, size_t length) const {
  if (begin + length > text.size())
    return nullptr;
  const auto found = patterns_.find(lower_ascii(text.substr(begin, length)));
  return found == patterns_.end() ? nullptr : &found->second;
}

size_t AddedTokenCuts::cut_before(std::string_view text, size_t at) const {
  if (lengths_.empty())
    return at;
  while (true) {
    const size_t further = step(text, at);
    if (further == at)
      return at;
    at = further;
  }
}

size_t AddedTokenCuts::step(std::string_view text, size_t at) const {
  const size_t white_begin = white_space_begin(text, at);
  const size_t white_end = white_space_end(text, at);

  bool begins_here = false;
  for (const size_t length : lengths_) {
    const Strips* const strips = find(text, white_end, length);
    if (strips && strips->left && white_begin < at)
      return white_begin;
    begins_here = begins_here || find(text, at, length) != nullptr ||
                  (strips && strips->left);
  }
  for (const size_t length : lengths_) {
    // Across the cut, or up to it.
    for (size_t begin = at - std::min(at, length); begin < at; ++begin) {
      const bool ends_here = begin + length == at;
      if (find(text, begin, length) && !(ends_here && begins_here))
        return begin;
    }
    // Up to the white space in front of the cut, which it takes along.
    if (white_begin < at && white_begin >= length) {
      const Strips* const strips = find(text, white_begin - length, length);
      if (strips && strips->right)
        return white_begin - length;
    }
  }
  return at;
}

}  // namespace brigade
