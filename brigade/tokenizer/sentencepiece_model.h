// What a SentencePiece .model says, read from its protobuf without its library.
// Fields: sentencepiece_model.proto of google/sentencepiece.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade {

struct SentencePieceModel {
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6,
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  enum class Algorithm { kUnigram = 1, kBpe = 2, kWord = 3, kCharacters = 4 };

  std::vector<Piece> pieces;      // by id
  std::string bos_piece = "<s>";  // a piece that may not be there
  std::string eos_piece = "</s>";
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false;
  bool white_space_is_suffix = false;
  std::string charsmap;  // of the normalizer; empty: it is the identity
  bool adds_dummy_prefix = true;
  bool removes_extra_white_space = true;
  bool escapes_white_space = true;
  bool has_denormalizer = false;
};

// Throws DataError naming `file` for bytes that are no such protobuf.
SentencePieceModel parse_sentencepiece_model(
    std::string_view bytes,
    const std::string& file);

}  // namespace brigade
