// The lowest and the highest token id of a dataset, found once per file: token
// files of other programs do not say which vocabulary they were made with, and
// an id that the model does not know should stop a run before it starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "brigade/data/token_dataset.h"

namespace brigade {

struct TokenScanProgress {
  std::string path;
  uint64_t done_tokens = 0;
  uint64_t total_tokens = 0;
};

struct TokenScanOptions {
  // Where the result is kept, by path, size, inode and time of modification of
  // the file; empty: nowhere. Processes that scan the same file take turns, so
  // that only the first one reads it.
  std::filesystem::path cache_dir;
  std::function<void(const TokenScanProgress&)> on_progress;
};

// The range of the ids of all tokens; {0, -1} of an empty dataset.
TokenIdRange find_token_range(
    const TokenDataset& dataset,
    const TokenScanOptions& options = {});

// Throws DataError with file and byte offset of the first token that is
// negative or not below dataset's vocab_size, which must be set.
void check_token_ids(
    const TokenDataset& dataset,
    int64_t vocab_size,
    const TokenScanOptions& options = {});

}  // namespace brigade
