// Added tokens: strings that are cut out of the text before the model sees it.
//
// Those with "normalized": false are looked for in the raw text, the others,
// in their normalised form, in the normalised text. The match is the leftmost
// one, and of several that begin there the longest.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace brigade {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only if no word character is adjacent
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that after it
  bool normalized = true;
  bool special = false;
};

// Finds a fixed set of strings; immutable once built, thread-safe.
class AddedTokenMatcher {
 public:
  // `pattern` must not be empty. The token is copied.
  void add(std::string_view pattern, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Calls text(begin, end) and token(added, begin, end) for the parts of
  // `input` from left to right. Each position costs at most the longest
  // pattern.
  template <typename Text, typename Token>
  void cut(std::string_view input, Text&& text, Token&& token) const {
    size_t covered = 0;
    Match match;
    size_t from = 0;
    while (find(input, from, match)) {
      from = match.end;
      if (!widen(input, covered, match))
        continue;
      if (covered < match.begin)
        text(covered, match.begin);
      token(tokens_[match.token], match.begin, match.end);
      covered = match.end;
    }
    if (covered < input.size())
      text(covered, input.size());
  }

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_
    std::vector<std::pair<char, int32_t>> children;
  };
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t token = -1;
  };
  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_{};  // a pattern begins with this byte

  int32_t child(int32_t node, char c) const;
  bool find(std::string_view input, size_t from, Match& match) const;
  // Applies single_word, lstrip and rstrip; false when the match is discarded,
  // also because the one before has taken it along.
  bool widen(std::string_view input, size_t covered, Match& match) const;
};

// Where a text may be cut: not within an added token, nor behind one that
// nothing of its kind follows, since what a tokenizer does to the text behind
// an added token differs from what it does to text behind text.
class AddedTokenCuts {
 public:
  // `pattern` must not be empty. ASCII letters count in either case: the text
  // is cut before it is normalised, and a cut too many avoided does no harm.
  void add(std::string_view pattern, const AddedToken& token);

  // The place for Tokenizer::cut_before(), which may be 0.
  size_t cut_before(std::string_view text, size_t at) const;

 private:
  struct Strips {
    bool left = false;
    bool right = false;
  };
  std::unordered_map<std::string, Strips> patterns_;
  std::vector<size_t> lengths_;  // of the patterns, each once, descending

  const Strips* find(std::string_view text, size_t begin, size_t length) const;
  // One step to the left, or `at`.
  size_t step(std::string_view text, size_t at) const;
};

}  // namespace brigade
