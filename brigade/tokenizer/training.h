// Trains a SentencePiece tokenizer of Llama 2's kind: BPE with byte fallback,
// no normalisation, digits apart, so that every text decodes to itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace brigade {

struct TokenizerTrainingOptions {
  int64_t vocab_size = 8192;  // with <unk> 0, <s> 1, </s> 2 and 256 bytes
  // Share of the text's characters that get a token; the rest is spelled in
  // bytes.
  double character_coverage = 0.9995;
  int num_threads = 1;
  // Reads this much text at most; the trainer holds it in memory several
  // times over.
  int64_t max_bytes = int64_t{32} << 20;
  // Called once all text is read. Learning the tokens from it, which follows,
  // takes the most time.
  std::function<void()> on_text_read;
};

// Puts the next piece of text in `text` and returns true, or returns false at
// the end. A piece may hold several lines and be of any length.
using TextSource = std::function<bool(std::string& text)>;

// Writes the model to `model_path`, whole or not at all. The same text and
// options give the same bytes. Throws ConfigError when the vocabulary size
// does not suit the text (too large or too small), DataError for text that is
// empty or not UTF-8, StorageError when the file cannot be written.
void train_sentencepiece(
    const TextSource& next,
    const std::filesystem::path& model_path,
    const TokenizerTrainingOptions& options = {});

}  // namespace brigade
