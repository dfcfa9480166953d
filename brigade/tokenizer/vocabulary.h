// Tokens and their ids, as the "model" of a tokenizer.json lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "brigade/json/node.h"

namespace brigade {

// Filled once, immutable after that; thread-safe then.
class Vocabulary {
 private:
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };

 public:
  using Ids =
      std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

  Vocabulary() = default;
  // Reads {"token": id, ...}. Throws DataError at an id that is none or that
  // two tokens have.
  explicit Vocabulary(const JsonNode& node);
  Vocabulary(const Vocabulary&) = delete;  // texts_ points into ids_
  Vocabulary& operator=(const Vocabulary&) = delete;

  void reserve(size_t tokens);
  // Adds a token. If the text is known already, id() gives the new id and
  // text() the same text for both. False if another token has the id.
  bool add(const std::string& text, int32_t id);

  std::optional<int32_t> id(std::string_view text) const;
  // nullptr when no token has the id.
  const std::string* text(int32_t id) const;
  // Ids, not texts: a text may have several.
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  int32_t max_id() const { return max_id_; }
  size_t max_token_bytes() const { return max_token_bytes_; }
  const Ids& ids() const { return ids_; }

 private:
  Ids ids_;
  std::unordered_map<int32_t, const std::string*> texts_;  // into ids_
  int32_t max_id_ = -1;
  size_t max_token_bytes_ = 0;
};

}  // namespace brigade
