
#include "brigade/base/checked_math.h"
#include "brigade/data/byte_reader.h"
#include "brigade/data/token_format.h"

namespace brigade {
namespace {

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};

TokenType token_type_of(const ByteReader& reader, uint64_t at, uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 2:
      return TokenType::kI8;
    case 3:
      return TokenType::kI16;
    case 4:
      return TokenType::kI32;
    case 5:
      return TokenType::kI64;
    case 8:
      return TokenType::kU16;
    case 6:
    case 7:
      reader.fail(at, "dtype code {} is floating point, not tokens", code);
    default:
      reader.fail(at, "dtype code {} is none of Megatron's 1 to 8", code);
  }
}

// The bytes of an array of `count` elements.
uint64_t array_bytes(
    const ByteReader& reader,
    uint64_t at,
    uint64_t count,
    uint64_t item_bytes) {
  const auto size_bytes = checked_multiply(count, item_bytes);
  if (!size_bytes)
    reader.fail(at, "a count of {} overflows", count);
  return *size_bytes;
}

// The arrays of an index and where each begins in the file.
struct MegatronIndex {
  TokenType type = TokenType::kU16;
  uint64_t num_sequences = 0;
  uint64_t num_entries = 0;  // of `documents`: one more than documents
  std::span<const std::byte> lengths;    // i32, tokens of each sequence
  std::span<const std::byte> offsets;    // i64, bytes in the .bin
  std::span<const std::byte> documents;  // i64, their first sequences
  uint64_t lengths_at = 0;
  uint64_t offsets_at = 0;
  uint64_t documents_at = 0;
};

MegatronIndex read_index(ByteReader& reader) {
  const auto magic = reader.take(kMegatronMagic.size(), "Megatron's magic");
  if (std::memcmp(magic.data(), kMegatronMagic.data(), kMegatronMagic.size()) !=
      0)
    reader.fail(0, "not a Megatron index: it must begin with MMIDIDX");
  const auto version = reader.number<uint64_t>("the version");
  if (version != 1)
    reader.fail(9, "version {}; only 1 is known", version);
  MegatronIndex index;
  const uint64_t type_at = reader.offset();
  index.type =
      token_type_of(reader, type_at, reader.number<uint8_t>("the dtype code"));

  const uint64_t counts_at = reader.offset();
  index.num_sequences = reader.number<uint64_t>("the sequence count");
  index.num_entries = reader.number<uint64_t>("the document count");
  if (index.num_entries == 0)
    reader.fail(counts_at + 8, "the document array must have its last entry");
  index.lengths_at = reader.offset();
  index.lengths = reader.take(
      array_bytes(reader, counts_at, index.num_sequences, 4),
      "the length array");
  index.offsets_at = reader.offset();
  index.offsets = reader.take(
      array_bytes(reader, counts_at, index.num_sequences, 8),
      "the offset array");
  index.documents_at = reader.offset();
  index.documents = reader.take(
      array_bytes(reader, counts_at + 8, index.num_entries, 8),
      "the document array");
  if (reader.remaining() != 0) {
    reader.fail(
        reader.offset(), "{} bytes too many at the end", reader.remaining());
  }
  return index;
}

// All sequences must lie back to back in the .bin and fill it.
void check_sequences(
    const ByteReader& reader,
    const MegatronIndex& index,
    const std::string& index_name,
    const NamedBytes& tokens) {
  const uint64_t item_bytes = token_bytes(index.type);
  // Tokens and bytes cannot overflow before they exceed the .bin's size.
  uint64_t num_bytes = 0;
  for (uint64_t i = 0; i < index.num_sequences; ++i) {
    const auto length = load_at<int32_t>(index.lengths, i);
    if (length < 0)
      reader.fail(
          index.lengths_at + 4 * i, "sequence {} has length {}", i, length);
    const auto offset = load_at<int64_t>(index.offsets, i);
    if (offset < 0 || static_cast<uint64_t>(offset) != num_bytes) {
      reader.fail(
          index.offsets_at + 8 * i,
          "sequence {} begins at byte {} of the .bin, but those before it end "
          "at {}",
          i,
          offset,
          num_bytes);
    }
    num_bytes += static_cast<uint64_t>(length) * item_bytes;
    if (num_bytes > tokens.bytes.size()) {
      throw DataError(fmt::format(
          "[{}] has {} bytes, but sequence {} of '{}' ends at byte {}: the "
          "file was cut off, or belongs to another index",
          tokens.name,
          tokens.bytes.size(),
          i,
          index_name,
          num_bytes));
    }
  }
  if (num_bytes != tokens.bytes.size()) {
    throw DataError(fmt::format(
        "[{}] has {} bytes, but '{}' accounts for {}: they do not belong "
        "together",
        tokens.name,
        tokens.bytes.size(),
        index_name,
        num_bytes));
  }
}

// Documents are sequences in order, from the first to the last.
void check_documents(const ByteReader& reader, const MegatronIndex& index) {
  int64_t previous = 0;
  for (uint64_t d = 0; d < index.num_entries; ++d) {
    const auto first = load_at<int64_t>(index.documents, d);
    const bool in_order = d == 0 ? first == 0 : first >= previous;
    if (!in_order || static_cast<uint64_t>(first) > index.num_sequences) {
      reader.fail(
          index.documents_at + 8 * d,
          "document {} begins at sequence {}; expected {} to {}",
          d,
          first,
          previous,
          d == 0 ? 0 : index.num_sequences);
    }
    previous = first;
  }
  if (static_cast<uint64_t>(previous) != index.num_sequences) {
    reader.fail(
        index.documents_at + 8 * (index.num_entries - 1),
        "the last document ends at sequence {} of {}",
        previous,
        index.num_sequences);
  }
}

}  // namespace

TokenFileLayout parse_megatron(
    const NamedBytes& index_file,
    const NamedBytes& tokens) {
  ByteReader reader(index_file.name, index_file.bytes);
  const MegatronIndex index = read_index(reader);
  check_sequences(reader, index, index_file.name, tokens);
  check_documents(reader, index);
  const uint64_t item_bytes = token_bytes(index.type);
  const uint64_t num_tokens = tokens.bytes.size() / item_bytes;
  return {
      index.type,
      0,
      num_tokens,
      DocumentIndex::sequences(
          index.documents, index.offsets, item_bytes, num_tokens)};
}

}  // namespace brigade
