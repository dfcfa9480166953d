// Decoders for tokens that show where words begin or end: WordPiece ("##" in
// front of a token that continues a word) and BPEDecoder ("</w>" at its end).
#pragma once

#include <memory>

#include "brigade/tokenizer/decoder.h"

namespace brigade {

std::unique_ptr<Decoder> make_word_piece_decoder(const JsonNode& node);
// Of type "BPEDecoder".
std::unique_ptr<Decoder> make_suffix_decoder(const JsonNode& node);

}  // namespace brigade
