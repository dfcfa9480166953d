#include "brigade/data/token_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/data/dataset_info.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

using File = std::shared_ptr<const MappedFile>;

File map_file(const fs::path& path) {
  return std::make_shared<const MappedFile>(path);
}

NamedBytes named(const File& file) {
  return {file->path().string(), file->bytes()};
}

// datatrove's PATH.metadata: "TOKENIZER|BYTES_PER_TOKEN", then the count.
std::optional<TokenType> nanotron_metadata_type(const fs::path& path) {
  if (!fs::exists(path))
    return std::nullopt;
  const std::string text = read_text_file(path);
  const std::string line = text.substr(0, text.find('\n'));
  const size_t bar = line.rfind('|');
  const std::string size = bar == std::string::npos ? "" : line.substr(bar + 1);
  if (size == "2")
    return TokenType::kU16;
  if (size == "4")
    return TokenType::kU32;
  throw DataError(fmt::format(
      "[{}] at byte 0: '{}' is not TOKENIZER|2 or TOKENIZER|4",
      path.string(),
      line.substr(0, 80)));
}

template <typename T>
void convert(std::span<const std::byte> bytes, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);
  }
}

template <typename T>
TokenIdRange range(std::span<const std::byte> bytes) {
  T lowest = std::numeric_limits<T>::max();
  T highest = std::numeric_limits<T>::min();
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + i, sizeof(T));
    lowest = std::min(lowest, value);
    highest = std::max(highest, value);
  }
  return {static_cast<int64_t>(lowest), static_cast<int64_t>(highest)};
}

// Calls visit with a value of the C++ type; 64-bit ids are signed, so that
// those of 2^63 and more come out negative.
template <typename Visit>
auto visit_type(TokenType type, Visit&& visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(uint8_t{});
    case TokenType::kI8:
      return visit(int8_t{});
    case TokenType::kU16:
      return visit(uint16_t{});
    case TokenType::kI16:
      return visit(int16_t{});
    case TokenType::kU32:
      return visit(uint32_t{});
    case TokenType::kI32:
      return visit(int32_t{});
    case TokenType::kI64:
    case TokenType::kU64:
      break;
  }
  return visit(int64_t{});
}

}  // namespace

TokenDataset TokenDataset::open(
    const fs::path& path,
    const TokenDatasetOptions& options) {
  const std::string extension = path.extension().string();
  if (extension == ".npy") {
    File tokens = map_file(path);
    TokenFileLayout layout = parse_npy(named(tokens));
    return {"NumPy", std::move(tokens), nullptr, layout, options};
  }
  if (extension == ".ds") {
    File tokens = map_file(path);
    const fs::path index_path = with_suffix(path, ".index");
    File index = fs::exists(index_path) ? map_file(index_path) : nullptr;
    TokenFileLayout layout = parse_nanotron(
        named(tokens),
        index ? std::optional(named(index)) : std::nullopt,
        nanotron_metadata_type(with_suffix(path, ".metadata")),
        options.vocab_size);
    return {"nanotron", std::move(tokens), std::move(index), layout, options};
  }

  const fs::path prefix = dataset_prefix(path);
  const fs::path tokens_path = with_suffix(prefix, ".bin");
  const fs::path index_path = with_suffix(prefix, ".idx");
  const bool has_index = fs::exists(index_path);
  if (!fs::exists(tokens_path)) {
    throw DataError(fmt::format(
        "[token_dataset] '{}' does not exist; '{}' must be the prefix of a "
        ".bin and .idx pair, or a .bin, .ds or .npy file. 'brigade prepare' "
        "makes one from text",
        has_index ? tokens_path.string() : index_path.string(),
        path.string()));
  }
  File tokens = map_file(tokens_path);
  if (!has_index) {
    if (!has_llm_c_magic(tokens->bytes())) {
      throw DataError(fmt::format(
          "[token_dataset] '{}' has no '{}' beside it and does not begin as "
          "llm.c's files do: it was not completely written, or is not a token "
          "file, or, as nanoGPT's, one of tokens without a header, which is "
          "not read: write it as .npy with numpy.save('{}', "
          "numpy.fromfile('{}', 'uint16'))",
          tokens_path.string(),
          index_path.filename().string(),
          fs::path(tokens_path).replace_extension(".npy").string(),
          tokens_path.string()));
    }
    TokenFileLayout layout = parse_llm_c(named(tokens));
    return {"llm.c", std::move(tokens), nullptr, layout, options};
  }
  File index = map_file(index_path);
  TokenFileLayout layout = parse_megatron(named(index), named(tokens));
  return {"Megatron", std::move(tokens), std::move(index), layout, options};
}

TokenDataset TokenDataset::open_growing(
    const fs::path& tokens,
    const fs::path& ends,
    TokenType type,
    const TokenDatasetOptions& options) {
  // Tokens are mapped first: whatever tokens are seen, their ends are there.
  File token_file = map_file(tokens);
  File end_file = map_file(ends);
  const uint64_t num_tokens = token_file->bytes().size() / token_bytes(type);
  const TokenFileLayout layout{
      type,
      0,
      num_tokens,
      DocumentIndex::growing_ends(end_file->bytes(), num_tokens)};
  return {"text", std::move(token_file), std::move(end_file), layout, options};
}

void TokenDataset::read(uint64_t begin, std::span<int64_t> out) const {
  BRIGADE_ASSERT(
      begin <= num_tokens() && out.size() <= num_tokens() - begin,
      "tokens [{}, +{}) of {}",
      begin,
      out.size(),
      num_tokens());
  const uint64_t item_bytes = token_bytes(layout_.type);
  const uint64_t first_byte = layout_.first_byte + begin * item_bytes;
  const auto bytes =
      tokens_->bytes().subspan(first_byte, out.size() * item_bytes);
  visit_type(layout_.type, [&]<typename T>(T) { convert<T>(bytes, out); });

  const int64_t limit =
      options_.vocab_size.value_or(std::numeric_limits<int64_t>::max());
  const auto bad = std::find_if(out.begin(), out.end(), [&](int64_t id) {
    return id < 0 || id >= limit;
  });
  if (bad == out.end())
    return;
  throw DataError(fmt::format(
      "[{}] at byte {}: token id {} is outside the vocabulary{}",
      path().string(),
      first_byte + static_cast<uint64_t>(bad - out.begin()) * item_bytes,
      *bad,
      options_.vocab_size
          ? fmt::format(
                " of {}; is this the model's tokenizer? A model that begins "
                "anew takes the dataset's with model.config.vocab_size=null",
                limit)
          : std::string()));
}

void TokenDataset::read_targets(uint64_t begin, std::span<int64_t> out) const {
  read(begin, out);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!counts(begin + i))
      out[i] = kNoTarget;
  }
}

TokenIdRange TokenDataset::range_of(uint64_t begin, uint64_t count) const {
  BRIGADE_ASSERT(
      count > 0 && begin <= num_tokens() && count <= num_tokens() - begin,
      "tokens [{}, +{}) of {}",
      begin,
      count,
      num_tokens());
  const uint64_t item_bytes = token_bytes(layout_.type);
  const auto bytes = tokens_->bytes().subspan(
      layout_.first_byte + begin * item_bytes, count * item_bytes);
  return visit_type(
      layout_.type, [&]<typename T>(T) { return range<T>(bytes); });
}

void TokenDataset::require_window(int64_t seq_length) const {
  if (num_tokens() > static_cast<uint64_t>(seq_length))
    return;
  throw DataError(fmt::format(
      "[{}] holds {} tokens, but one window takes training.seq_length {} + 1 "
      "= {}: give more text, or a shorter training.seq_length",
      path().string(),
      num_tokens(),
      seq_length,
      seq_length + 1));
}

}  // namespace brigade
