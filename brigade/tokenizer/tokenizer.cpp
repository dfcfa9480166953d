#include "brigade/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/files/usual_path.h"
#include "brigade/tokenizer/kinds.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "brigade/tokenizer/tokens_beside.h"

namespace brigade {

namespace fs = std::filesystem;

namespace {

// By the extension if it is a known one, else by the first byte: a
// SentencePiece model is a protobuf whose first byte is 0x0A.
bool is_json(const fs::path& path) {
  if (path.extension() == ".json" || path.extension() == ".model")
    return path.extension() == ".json";
  const MappedFile file(path);
  return file.size_bytes() > 0 && file.bytes()[0] == std::byte{'{'};
}

// By its own library, or, where files beside it make other tokens special than
// the model's own, by the engine of tokenizer.json. Where that cannot be, names
// that are no symbols stay without effect, but listed tokens are needed.
std::unique_ptr<Tokenizer> load_sentencepiece(const fs::path& path) {
  const MappedFile file(path);
  const SentencePieceModel model =
      parse_sentencepiece_model(file.text(), path.string());
  const TokensBeside beside = read_tokens_beside(path, model);
  const auto reason = reason_not_to_convert(model);
  const auto added = listed_new_token(beside, model);
  if (reason && added) {
    throw DataError(fmt::format(
        "[tokenizer] {}: the files beside it add \"{}\" to the model, which "
        "cannot be done here: {}; save it as tokenizer.json with transformers "
        "(AutoTokenizer.from_pretrained(...).save_pretrained(...))",
        path.string(),
        *added,
        *reason));
  }
  if (reason || names_only_symbols(beside, model))
    return make_sentencepiece_tokenizer(path, beside);
  return std::make_unique<HuggingFaceTokenizer>(
      sentencepiece_json(model, beside, path.string()).dump(),
      path.string(),
      TokensBeside{.names = beside.names});
}

}  // namespace

fs::path tokenizer_file(const fs::path& path) {
  refuse_loop(path);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError(fmt::format(
        "[tokenizer] {}: no such file or folder; give \"bytes\", a "
        "tokenizer.json, a SentencePiece .model, or a folder with one of them",
        path.string()));
  }
  if (!fs::is_directory(path, error)) {
    static_cast<void>(has_file(path));  // a pipe would be waited for
    return path;
  }
  for (const char* name : kTokenizerFiles) {
    if (has_file(path / name))
      return path / name;
  }
  throw DataError(fmt::format(
      "[tokenizer] {}: the folder holds neither tokenizer.json nor "
      "tokenizer.model",
      path.string()));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == "bytes")
    return make_bytes_tokenizer();
  const fs::path path = tokenizer_file(spec);
  if (is_json(path))
    return HuggingFaceTokenizer::load(path);
  return load_sentencepiece(path);
}

}  // namespace brigade
