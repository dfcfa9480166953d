// Normalizers that look at one character after another: StripAccents, Nmt and
// BertNormalizer.
#pragma once

#include <memory>

#include "brigade/tokenizer/normalizer.h"

namespace brigade {

// Removes marks. Only after NFD or NFKD do accented letters lose theirs.
std::unique_ptr<Normalizer> make_strip_accents_normalizer();
// Removes control characters and turns unusual white space into spaces.
std::unique_ptr<Normalizer> make_nmt_normalizer();
// Four steps of BERT that the keys switch on: clean_text, handle_chinese_chars,
// strip_accents (null: as lowercase), lowercase.
std::unique_ptr<Normalizer> make_bert_normalizer(const JsonNode& node);

}  // namespace brigade
