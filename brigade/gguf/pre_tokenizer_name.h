// The pre-tokenizers of byte-level BPE that llama.cpp implements, by the names
// that it has for them. Its own converter looks a name up by what the
// vocabulary makes of one text, which no new vocabulary can match; here the
// rules themselves are compared.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace brigade {

// Whether a word that is a token as a whole is not put together by merges.
// llama.cpp ties it to the name.
enum class WholeWords { kAreMerged, kIgnoreMerges };

// Whether texts begin with the begin token where a file does not say
// (tokenizer.ggml.add_bos_token). llama.cpp ties it to the name too.
enum class BeginToken { kNotAdded, kAdded };

struct PreTokenizerName {
  std::string name;
  WholeWords whole_words = WholeWords::kAreMerged;
  // What llama.cpp does otherwise; empty: nothing.
  std::string difference;
};

// The names for the "pre_tokenizer" of a tokenizer.json, at most one per kind
// of whole words. Empty: llama.cpp has none.
std::vector<PreTokenizerName> pre_tokenizer_names(
    const nlohmann::json& pre_tokenizer);

// The "pre_tokenizer" that a name stands for; null for a name that is not
// known.
nlohmann::json pre_tokenizer_named(const std::string& name);
// Precondition of both: the name is known.
WholeWords whole_words_of(const std::string& name);
BeginToken begin_token_of(const std::string& name);

}  // namespace brigade
