#include "brigade/tokenizer/training.h"

#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/sentencepiece_reason.h"

namespace brigade {
namespace {

// The trainer silently drops longer sentences, so they are cut.
constexpr size_t kMaxSentenceBytes = 4096;

// Cuts the source's pieces into lines of bounded length. The trainer calls it
// through C++ code that expects no exception, so one is kept for afterwards.
class LineIterator : public sentencepiece::SentenceIterator {
 public:
  LineIterator(const TextSource& next, const TokenizerTrainingOptions& options)
      : next_(next), options_(options) {
    advance();
  }

  bool done() const override { return done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return line_; }
  // Abseil's Status or its own, by version.
  decltype(std::declval<sentencepiece::SentenceIterator>().status()) status()
      const override {
    return {};
  }

  int64_t bytes_read() const { return bytes_read_; }
  void rethrow() const {
    if (error_)
      std::rethrow_exception(error_);
  }

 private:
  const TextSource& next_;
  const TokenizerTrainingOptions& options_;
  std::string text_;
  size_t offset_ = 0;
  std::string line_;
  int64_t bytes_read_ = 0;
  bool done_ = false;
  std::exception_ptr error_;

  void advance() {
    try {
      do {
        if (!fill()) {
          done_ = true;
          if (options_.on_text_read)
            options_.on_text_read();
          return;
        }
        cut();
      } while (line_.empty());
      bytes_read_ += static_cast<int64_t>(line_.size());
    } catch (...) {
      error_ = std::current_exception();
      done_ = true;
    }
  }

  bool fill() {
    while (offset_ >= text_.size()) {
      if (bytes_read_ >= options_.max_bytes || !next_(text_))
        return false;
      require_utf8(text_);
      offset_ = 0;
    }
    return true;
  }

  void cut() {
    size_t end = text_.find('\n', offset_);
    size_t following = end + 1;
    if (end == std::string::npos)
      following = end = text_.size();
    if (end - offset_ > kMaxSentenceBytes) {
      end = offset_ + kMaxSentenceBytes;
      while (is_utf8_continuation(text_[end]))
        --end;
      // If possible between words.
      const size_t space = text_.rfind(' ', end);
      if (space != std::string::npos && space > offset_)
        end = space;
      following = end;
    }
    line_.assign(text_, offset_, end - offset_);
    offset_ = following;
  }
};

// SentencePiece's reasons, such as "Internal: file.cc(660) [condition]
// Vocabulary size too high (9). Please set it to a value <= 5.", in words about
// the text.
std::string explain(const std::string& reason) {
  const size_t digits = reason.find_last_of("0123456789");
  size_t begin = digits;
  while (begin != std::string::npos && begin > 0 &&
         std::isdigit(static_cast<unsigned char>(reason[begin - 1])) != 0)
    --begin;
  if (reason.find("size too high") != std::string::npos)
    return fmt::format(
        "at most {} can be made of it",
        reason.substr(begin, digits + 1 - begin));
  const size_t versus = reason.find(" vs ");
  if (reason.find("smaller than required") != std::string::npos &&
      versus != std::string::npos)
    return fmt::format(
        "its characters and the 256 bytes alone need {}",
        std::atoll(reason.c_str() + versus + 4));
  return words_of_sentencepiece(reason);
}

}  // namespace

void train_sentencepiece(
    const TextSource& next,
    const std::filesystem::path& model_path,
    const TokenizerTrainingOptions& options) {
  constexpr int64_t kReserved = 3 + 256;
  if (options.vocab_size <= kReserved || options.vocab_size > (1 << 24)) {
    throw ConfigError(fmt::format(
        "[tokenizer] vocabulary size {} is outside {} (three special tokens "
        "and 256 bytes come first) to {}",
        options.vocab_size,
        kReserved + 1,
        1 << 24));
  }
  LineIterator lines(next, options);
  lines.rethrow();
  if (lines.done())
    throw DataError("[tokenizer] there is no text to train a tokenizer on");

  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"num_threads", std::to_string(std::max(1, options.num_threads))},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"max_sentence_length", std::to_string(4 * kMaxSentenceBytes)},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"minloglevel", "2"},
  };
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &model);
  lines.rethrow();
  if (!status.ok()) {
    throw ConfigError(fmt::format(
        "[tokenizer] cannot train a vocabulary of {} on {} bytes of text: {}",
        options.vocab_size,
        lines.bytes_read(),
        explain(status.ToString())));
  }
  write_text_file(model_path, model);
}

}  // namespace brigade
