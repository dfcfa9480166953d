// The "pre_tokenizer" of a tokenizer.json: cuts text into the words that the
// model works on. Pieces flow from one pre-tokenizer to the next through sinks,
// so a text is never held as a list of its words.
#pragma once

#include <functional>
#include <string_view>

#include "brigade/json/node.h"
#include "brigade/tokenizer/regex.h"

namespace brigade {

// Valid during the call that receives it. Never empty.
struct Piece {
  std::string_view text;
  // The text is raw bytes that the model must read through GPT-2's byte
  // alphabet; spelling them out is put off because the next stage rarely needs
  // it.
  bool byte_level = false;
  // Begins where the whole input begins (before normalisation).
  bool at_start = false;
};

using PieceSink = std::function<void(const Piece& piece)>;

// Gives the parts of `piece` to `sink`, from left to right. Thread-safe with
// one RegexScratch per thread.
using PreTokenizer = std::function<
    void(const Piece& piece, RegexScratch& scratch, const PieceSink& sink)>;

// ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit,
// BertPreTokenizer, CharDelimiterSplit, Metaspace, Sequence; anything else is
// refused by name (DataError).
// `depth`: the Sequences that it is in.
PreTokenizer make_pre_tokenizer(const JsonNode& node, int depth = 0);

}  // namespace brigade
