// What the files beside a tokenizer.json or .model say of its tokens: the names
// of the special ones, and tokens that transformers adds to those of the file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/tokenizer/added_tokens.h"

namespace brigade {

// The names of bos and eos. "": given as null, the tokenizer has none; absent:
// no file says.
struct SpecialNames {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
};

// Both lists are in the order in which transformers adds them. Each token gets
// the id that it has already, or the next free one, whatever a file says.
struct TokensBeside {
  SpecialNames names;
  // The tokens of "added_tokens_decoder", or of an added_tokens.json. They
  // replace the flags that the tokenizer.json gives the same token.
  std::vector<AddedToken> listed;
  // added_tokens.json gives way to a token that the tokenizer.json has at its
  // id; "added_tokens_decoder" does not.
  bool gives_way = true;
  // Values of "bos_token" and the like: special, whatever `listed` says.
  std::vector<AddedToken> named;
  std::vector<AddedToken> extra;  // of "extra_special_tokens"
  // Only of a .model: a tokenizer.json has a template and a normalizer.
  bool adds_bos = true;  // to a text, where there is one: "add_bos_token"
  bool adds_eos = false;
  bool is_legacy = false;  // a space comes behind added tokens too
};

// From tokenizer_config.json and, where it has no "added_tokens_decoder",
// special_tokens_map.json and added_tokens.json beside `path`; files that are
// not there say nothing. Throws DataError naming file and place.
TokensBeside read_tokens_beside(const std::filesystem::path& path);

}  // namespace brigade
