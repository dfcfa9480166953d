// What `brigade prepare` knew about a dataset, in PREFIX.json beside it, so
// that training finds the vocabulary and generation the tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

// One input file and what came out of it.
struct DatasetSource {
  std::string path;
  uint64_t text_bytes = 0;  // uncompressed
  uint64_t documents = 0;
  bool operator==(const DatasetSource&) const = default;
};

struct DatasetInfo {
  int64_t vocab_size = 0;
  // What load_tokenizer() takes: "bytes", or the path of the copy beside the
  // dataset (in the file: relative to the dataset's folder).
  std::string tokenizer;
  std::optional<int32_t> eos_id;  // appended to each document, if it was
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;
  // Pairs of a chosen and a rejected answer, two documents each; 0: documents
  // are no pairs. (In the file a version that older programs refuse.)
  uint64_t num_pairs = 0;
  std::string token_type;  // "uint16"
  std::vector<DatasetSource> sources;
  bool operator==(const DatasetInfo&) const = default;
};

// PREFIX of PREFIX, PREFIX.bin or PREFIX.idx.
std::filesystem::path dataset_prefix(const std::filesystem::path& path);

// PREFIX.json; std::nullopt if there is none. Throws DataError, naming the file
// and the JSON pointer, if it is damaged.
std::optional<DatasetInfo> read_dataset_info(
    const std::filesystem::path& prefix);

// Whether a file is one that write_dataset_info() wrote, of any version; false
// where it cannot be read. Reads as far as it must.
bool is_dataset_info(const std::filesystem::path& file);

// Throws StorageError.
void write_dataset_info(
    const std::filesystem::path& prefix,
    const DatasetInfo& info);

// Throws ConfigError when `tokenizer` (what load_tokenizer() takes) is not the
// one that made the dataset, by the content of their files; accepts any where
// the dataset's is not there any more. DataError when there is no such
// tokenizer.
void require_tokenizer(
    const DatasetInfo& info,
    const std::string& tokenizer,
    const std::filesystem::path& prefix);

}  // namespace brigade
