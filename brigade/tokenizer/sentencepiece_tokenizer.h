// A SentencePiece .model (unigram or BPE), run by libsentencepiece itself.
#pragma once

#include <filesystem>
#include <memory>

#include "brigade/tokenizer/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace brigade {

class SentencePieceTokenizer : public Tokenizer {
 public:
  // Throws DataError naming the file when it is not a SentencePiece model.
  explicit SentencePieceTokenizer(std::filesystem::path path);
  ~SentencePieceTokenizer() override;

  // kTemplate adds bos in front, as Llama does. Control symbols such as <s>
  // are never recognised in the text: SentencePiece's own rule.
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options = {}) const override;
  std::string decode(
      std::span<const int32_t> ids,
      const DecodeOptions& options = {}) const override;
  int64_t vocab_size() const override;
  std::optional<int32_t> bos_id() const override;
  std::optional<int32_t> eos_id() const override;
  std::optional<std::string> token_text(int32_t id) const override;
  std::optional<int32_t> token_id(std::string_view text) const override;
  std::string description() const override;

 private:
  enum class Place { kBegin, kMiddle };
  std::string decode_run(std::vector<int32_t> run, Place place) const;

  std::filesystem::path path_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace brigade
