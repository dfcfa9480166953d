// One block of text to tokens: prepare()'s work on each of its threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/data/text_files.h"
#include "brigade/data/text_reader.h"
#include "brigade/data/token_format.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

struct EncodedPiece {
  uint64_t num_tokens = 0;
  bool ends_document = true;
};

struct EncodedBlock {
  uint32_t file = 0;
  uint64_t text_bytes = 0;  // of the documents, as UTF-8
  // What is wrong with the lines of JSON that were left out.
  std::vector<std::string> bad_lines;
  uint64_t bytes_read = 0;           // TextBlock::bytes_read
  std::vector<std::byte> tokens;     // in the dataset's type
  std::vector<EncodedPiece> pieces;  // in order; their tokens are `tokens`
  // 1: the token counts in the loss, of each; empty: all do.
  std::vector<uint8_t> counts;
};

// Thread-safe. Throws what for_each_piece() and encode() throw.
EncodedBlock encode_block(
    const Tokenizer& tokenizer,
    const TextBlock& block,
    const TextFile& file,
    const TextOptions& options,
    BadLines bad_lines,
    TokenType type);

// What stands around the tokens of each document, in the dataset's type.
struct DocumentEnds {
  std::vector<std::byte> begin;
  std::vector<std::byte> end;
};

struct AppendedDocuments {
  uint64_t documents = 0;
  uint64_t empty_documents = 0;  // left out
};

// Adds the block's documents to a writer that has append(tokens),
// end_document() and open_tokens(), as MegatronWriter has.
template <typename Writer>
AppendedDocuments append_documents(
    const EncodedBlock& block,
    TokenType type,
    const DocumentEnds& ends,
    Writer& writer) {
  AppendedDocuments appended;
  std::span<const std::byte> tokens = block.tokens;
  for (const EncodedPiece& piece : block.pieces) {
    const uint64_t size_bytes = piece.num_tokens * token_bytes(type);
    if (writer.open_tokens() == 0 && piece.num_tokens > 0)
      writer.append(ends.begin);
    writer.append(tokens.first(size_bytes));
    tokens = tokens.subspan(size_bytes);
    if (!piece.ends_document)
      continue;
    if (writer.open_tokens() == 0) {
      ++appended.empty_documents;
      continue;
    }
    writer.append(ends.end);
    writer.end_document();
    ++appended.documents;
  }
  return appended;
}

}  // namespace brigade
