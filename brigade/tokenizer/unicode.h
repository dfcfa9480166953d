// The properties of code points that Hugging Face's engine uses. Compared
// with it over all code points; they differ only on characters assigned lately:
// after Unicode 15 here, and after Unicode 9 in the NFKC and NFKD of the
// engine.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brigade {

// White_Space, as Rust's char::is_whitespace.
bool is_white_space(char32_t c);
// Python's str.isspace(): general category Zs, and the bidirectional types WS,
// B and S.
inline bool is_python_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}
// Where the white space around `at` begins and ends, which is between
// characters of valid UTF-8: `at` itself where there is none.
size_t white_space_begin(std::string_view text, size_t at);
size_t white_space_end(std::string_view text, size_t at);
// General categories Nd, Nl, No, as Rust's char::is_numeric.
bool is_numeric(char32_t c);
// ASCII punctuation (symbols included) and the general categories P* as of
// Unicode 8, as Punctuation splits on.
bool is_punctuation(char32_t c);
// General categories Mn, Mc, Me as of Unicode 9.
bool is_mark(char32_t c);
// General category Mn as of Unicode 8.
bool is_nonspacing_mark(char32_t c);
// General categories Cc, Cf, Co as of Unicode 8.
bool is_control(char32_t c);
// Python's str.isprintable(): assigned, and neither a control character nor a
// separator other than the space.
bool is_printable(char32_t c);
// \w of Unicode TS 18: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word_character(char32_t c);
// Appends the full lower-case mapping of one character.
void append_lowercase(std::string& out, char32_t c);

// The end of the extended grapheme cluster that begins at text[at], which must
// begin a character of valid UTF-8.
size_t grapheme_end(std::string_view text, size_t at);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };
// `text` must be valid UTF-8.
std::string normalize_unicode(const std::string& text, NormalizationForm form);

}  // namespace brigade
