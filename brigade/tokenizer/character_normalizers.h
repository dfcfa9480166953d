// Normalizers that look at one character after another: Lowercase,
// StripAccents, Nmt and BertNormalizer.
#pragma once

#include "brigade/tokenizer/normalizer.h"

namespace brigade {

void lower_case(NormalizedText& text, RegexScratch& scratch);
// Removes marks. Only after NFD or NFKD do accented letters lose theirs.
void strip_accents(NormalizedText& text, RegexScratch& scratch);
// Removes control characters and turns unusual white space into spaces.
void normalize_as_nmt(NormalizedText& text, RegexScratch& scratch);
// Four steps of BERT that the keys switch on: clean_text, handle_chinese_chars,
// strip_accents (null: as lowercase), lowercase.
Normalizer make_bert_normalizer(const JsonNode& node);

}  // namespace brigade
