// One block of text to tokens; runs on a worker's thread.
#include "brigade/data/prepare_encode.h"

#include <algorithm>
#include <span>

#include "brigade/data/megatron_writer.h"

namespace brigade {
namespace {

// Tokenizers need memory and, some of them, time that grows faster than the
// text; most documents are shorter.
constexpr uint64_t kSliceBytes = 32 << 10;

// The tokens of text that has something in front of it. Alone, many tokenizers
// would treat it as a beginning (SentencePiece adds a space), so it is encoded
// behind a line end, which joins with nothing, and the line end's own tokens
// are taken off. A tokenizer for which that does not hold encodes it alone.
std::vector<int32_t> encode_middle(
    const Tokenizer& tokenizer,
    std::string_view text,
    size_t& skipped) {
  static constexpr std::string_view kLineEnd = "\n";
  const std::vector<int32_t> prefix = tokenizer.encode(kLineEnd);
  std::string joined(kLineEnd);
  joined += text;
  std::vector<int32_t> tokens = tokenizer.encode(joined);
  if (tokens.size() >= prefix.size() &&
      std::equal(prefix.begin(), prefix.end(), tokens.begin())) {
    skipped = prefix.size();
    return tokens;
  }
  skipped = 0;
  return tokenizer.encode(text);
}

// Adds the tokens of a piece of text of any size to `bytes`, and returns how
// many they are. A text of one slice has exactly those of tokenizer.encode();
// slices after the first are encoded as the middle of a text.
uint64_t encode_piece(
    const Tokenizer& tokenizer,
    const TextPiece& piece,
    TokenType type,
    std::vector<std::byte>& bytes) {
  std::string_view rest = piece.text;
  bool is_middle = piece.continues;
  uint64_t count = 0;
  while (!rest.empty()) {
    const std::string_view slice = rest.substr(
        0,
        rest.size() <= kSliceBytes
            ? rest.size()
            : find_cut(
                  rest, kSliceBytes, [&](std::string_view text, size_t at) {
                    return tokenizer.cut_before(text, at);
                  }));
    size_t skipped = 0;
    const std::vector<int32_t> tokens =
        is_middle ? encode_middle(tokenizer, slice, skipped)
                  : tokenizer.encode(slice);
    append_tokens(type, std::span(tokens).subspan(skipped), bytes);
    count += tokens.size() - skipped;
    rest.remove_prefix(slice.size());
    is_middle = true;
  }
  return count;
}

}  // namespace

EncodedBlock encode_block(
    const Tokenizer& tokenizer,
    const TextBlock& block,
    const TextFile& file,
    const TextOptions& options,
    BadLines bad_lines,
    TokenType type) {
  EncodedBlock encoded{.file = block.file, .bytes_read = block.bytes_read};
  std::function<void(const DataError&)> on_bad_line;
  if (bad_lines == BadLines::kSkip) {
    on_bad_line = [&](const DataError& error) {
      encoded.bad_lines.emplace_back(error.what());
    };
  }
  for_each_piece(
      block,
      file,
      options,
      [&](const TextPiece& piece) {
        encoded.text_bytes += piece.text.size();
        encoded.pieces.push_back(
            {encode_piece(tokenizer, piece, type, encoded.tokens),
             piece.ends_document});
      },
      on_bad_line);
  return encoded;
}

}  // namespace brigade
