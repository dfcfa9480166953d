// Text out of tokens as they are generated, one at a time: only whole
// characters, and the same spaces as decoding all tokens at once.
#pragma once

#include <string>
#include <vector>

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// One for each text that is being generated; not thread-safe. The tokenizer
// must outlive it. The concatenation of all push() and finish() results is
// decode() of all tokens, for tokens that form valid UTF-8.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(
      const Tokenizer& tokenizer,
      const DecodeOptions& options = {.skip_special_tokens = true})
      : tokenizer_(tokenizer), options_(options) {}

  // The text that became final with this token; empty while a character is
  // incomplete.
  std::string push(int32_t id);
  // What is still held back (as U+FFFD if it is incomplete); resets.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  // Tokens whose text was returned except an incomplete end, kept because a
  // token's text depends on those before it (a leading space is dropped only at
  // the beginning).
  std::vector<int32_t> context_;
  std::vector<int32_t> pending_;
  // Bytes of the text of context_ and pending_ that were returned.
  size_t given_ = 0;

  std::string decode_all() const;
  // Returns whole[given_, end), and notes that it was returned.
  std::string give(const std::string& whole, size_t end);
};

}  // namespace brigade
