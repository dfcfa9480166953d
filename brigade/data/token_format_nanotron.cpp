// nanotron's .ds files: tokens without a header, and the ends of documents in a
// .ds.index.
#include "brigade/base/checked_math.h"
#include "brigade/data/byte_reader.h"
#include "brigade/data/token_format.h"

namespace brigade {
namespace {

void check_ends(const NamedBytes& index) {
  const ByteReader reader(index.name, index.bytes);
  if (index.bytes.size() % sizeof(uint64_t) != 0) {
    reader.fail(
        index.bytes.size() / 8 * 8,
        "the file has {} bytes, not a multiple of 8",
        index.bytes.size());
  }
  uint64_t previous = 0;
  for (uint64_t d = 0; d < index.bytes.size() / sizeof(uint64_t); ++d) {
    const auto end = load_at<uint64_t>(index.bytes, d);
    if (end < previous) {
      reader.fail(
          8 * d,
          "document {} ends at token {}, before the one before it ({})",
          d,
          end,
          previous);
    }
    previous = end;
  }
}

TokenType nanotron_type(
    const NamedBytes& tokens,
    const std::optional<NamedBytes>& index,
    std::optional<int64_t> vocab_size) {
  if (index && !index->bytes.empty()) {
    const auto count =
        load_at<uint64_t>(index->bytes, index->bytes.size() / 8 - 1);
    for (const TokenType type : {TokenType::kU16, TokenType::kU32}) {
      if (checked_multiply(count, token_bytes(type)) == tokens.bytes.size())
        return type;
    }
    throw DataError(fmt::format(
        "[{}] has {} bytes, but its index '{}' ends at token {}: neither "
        "uint16 nor uint32 tokens fit",
        tokens.name,
        tokens.bytes.size(),
        index->name,
        count));
  }
  if (vocab_size)
    return *vocab_size <= 65536 ? TokenType::kU16 : TokenType::kU32;
  throw DataError(fmt::format(
      "[{}] cannot tell whether its tokens are uint16 or uint32: neither "
      "'.ds.index' nor '.ds.metadata' lies beside it",
      tokens.name));
}

}  // namespace

TokenFileLayout parse_nanotron(
    const NamedBytes& tokens,
    const std::optional<NamedBytes>& index,
    std::optional<TokenType> type,
    std::optional<int64_t> vocab_size) {
  if (index)
    check_ends(*index);
  if (!type)
    type = nanotron_type(tokens, index, vocab_size);
  const uint64_t item_bytes = token_bytes(*type);
  const uint64_t num_tokens = tokens.bytes.size() / item_bytes;
  if (tokens.bytes.size() % item_bytes != 0) {
    ByteReader(tokens.name, tokens.bytes)
        .fail(
            num_tokens * item_bytes,
            "the file has {} bytes, not a multiple of {} ({} tokens)",
            tokens.bytes.size(),
            item_bytes,
            to_string(*type));
  }
  if (!index)
    return {*type, 0, num_tokens, DocumentIndex(num_tokens)};
  DocumentIndex documents = DocumentIndex::cumulative_ends(index->bytes);
  if (documents.begin(documents.size()) != num_tokens) {
    throw DataError(fmt::format(
        "[{}] holds {} {} tokens, but its index '{}' ends at token {}",
        tokens.name,
        num_tokens,
        to_string(*type),
        index->name,
        documents.begin(documents.size())));
  }
  return {*type, 0, num_tokens, documents};
}

}  // namespace brigade
