// A Tokenizer turns UTF-8 text into token ids and back. There are three kinds:
// plain bytes, a SentencePiece .model, and Hugging Face's tokenizer.json.
//
// Life: made once by load_tokenizer(), immutable after that. Every member is
// const and may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brigade {

// Whether encode() adds what the tokenizer's template adds around a text, such
// as a leading <s>. Special tokens written in the text itself are recognised
// in either case, as Hugging Face does.
enum class SpecialTokens { kNone, kTemplate };

// A place at which an added token stands. The text from there on, encoded
// alone, gives this token and those behind it.
struct AddedTokenPlace {
  size_t begin = 0;  // bytes of the text
  size_t end = 0;    // with the white space that it takes along
  size_t token = 0;  // its index, without what the template adds
};

struct EncodeOptions {
  SpecialTokens special_tokens = SpecialTokens::kNone;
  // If given, places are appended to it, in order: those that the tokenizer
  // knows of, which may be none.
  std::vector<AddedTokenPlace>* places = nullptr;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokens of `text`. Throws DataError naming the byte offset when the
  // text is not valid UTF-8 (`bytes` takes any text).
  virtual std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options = {}) const = 0;

  // Always valid UTF-8: bytes that do not form a character come out as U+FFFD.
  // Ids outside the vocabulary are left out, as Hugging Face does.
  virtual std::string decode(
      std::span<const int32_t> ids,
      const DecodeOptions& options = {}) const = 0;

  // Where a text that is to be cut at `at` (between characters) may be cut so
  // that its parts have the tokens of the whole: at `at`, or further left where
  // an added token lies across it. The part behind must then be encoded as one
  // that has something in front of it.
  virtual size_t cut_before(std::string_view /*text*/, size_t at) const {
    return at;
  }

  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;

  // The token as the vocabulary writes it ("Ġthe", "▁the", "<0x0A>");
  // std::nullopt for an id that has none.
  virtual std::optional<std::string> token_text(int32_t id) const = 0;
  virtual std::optional<int32_t> token_id(std::string_view text) const = 0;

  // One line for people: the kind, where it came from, its size.
  virtual std::string description() const = 0;
};

// `spec` is "bytes", the path of a tokenizer.json, of a SentencePiece .model,
// or of a folder that holds tokenizer.json or (second choice) tokenizer.model.
// bos and eos come from tokenizer_config.json beside it, where null means none;
// a key that is absent, or the file, leaves them to the .model, or to the names
// that the known families use.
// Throws DataError naming the file and, for JSON, the path inside it.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec);

// The file that a path given to load_tokenizer() leads to: itself, or the one
// in the folder. Throws DataError when there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

}  // namespace brigade
