// Text as the tokens that `brigade prepare` would make of it, without a
// dataset that somebody prepared: they are made while they are already read.
//
// One process of a host tokenizes, on threads of its own that give way to
// others, and appends what it has to files of the folder; all its ranks read
// them there. Complete files stay, so that later runs of the same text begin at
// once, until none has begun for a while (text_cache.h); a process that ends
// before leaves its work to another, which starts over. The tokens are those of
// the files in the order of their paths, so the same whichever process made
// them.
//   FOLDER/KEY/tokens.ds, tokens.ds.index     complete: nanotron's format
//   FOLDER/KEY/growing, growing.index         under construction
//   FOLDER/KEY/lock                           of the process that tokenizes
// KEY says which text, tokenizer and options.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "brigade/data/text_files.h"
#include "brigade/data/token_dataset.h"
#include "brigade/data/token_format.h"
#include "brigade/files/lock.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

// What is tokenized, and how. Each document ends with the tokenizer's
// end-of-document token.
struct TextInput {
  std::vector<std::filesystem::path> paths;  // find_text_files()
  std::string tokenizer;                     // load_tokenizer()
  std::string key = "text";                  // TextOptions::json_key
  bool prepend_bos = false;                  // begin-of-text, per document
  std::string python = "python3";            // TextOptions::python
};

struct TextTokensProgress {
  uint64_t bytes_read = 0;
  uint64_t total_bytes = 0;
};

struct TextTokensOptions {
  std::filesystem::path folder;
  std::optional<int64_t> vocab_size;  // TokenDatasetOptions::vocab_size
  int num_workers = 0;                // 0: one per core
  // On a thread in wait_for_all(), while this process tokenizes.
  std::function<void(const TextTokensProgress&)> on_progress;
};

class TextTokens {
 public:
  // Throws DataError for files that do not exist or are pipes, ConfigError for
  // a tokenizer without the tokens that are asked for, StorageError for a
  // folder that cannot be written.
  TextTokens(const TextInput& source, const TextTokensOptions& options);
  // Stops the threads; what is not complete is left to others.
  ~TextTokens();
  TextTokens(const TextTokens&) = delete;
  TextTokens& operator=(const TextTokens&) = delete;

  struct Snapshot {
    std::shared_ptr<const TokenDataset> dataset;
    bool is_whole = false;  // no more will come
  };
  // The first `num_tokens` tokens and maybe more, or all there are; waits for
  // them. Throws what reading or tokenizing the text throws: see
  // for_each_piece(). Thread-safe.
  Snapshot wait_for(uint64_t num_tokens);
  Snapshot wait_for_all() { return wait_for(UINT64_MAX); }

  uint64_t text_bytes() const { return total_bytes_; }  // on disk

 private:
  bool look(uint64_t num_tokens);
  void begin_if_nobody_does();
  void report(std::unique_lock<std::mutex>& lock);
  void run();
  void tokenize();
  bool is_stopping();

  TextInput source_;
  TextTokensOptions options_;
  std::vector<TextFile> files_;
  uint64_t total_bytes_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<int32_t> bos_id_;
  int32_t eos_id_ = 0;
  TokenType type_ = TokenType::kU16;
  std::filesystem::path folder_;  // FOLDER/KEY

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  Snapshot snapshot_;
  std::optional<FileLock> lock_;  // while this process tokenizes
  std::exception_ptr exception_;
  uint64_t bytes_read_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade
