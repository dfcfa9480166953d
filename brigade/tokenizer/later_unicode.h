// Characters that are marks, punctuation or controls by now, but were not in
// the Unicode version that a table of Hugging Face's engine is made from.
// Compared with the engine over all code points (Unicode 15 here).
#pragma once

namespace brigade {

// Not punctuation in Unicode 8.
bool is_later_punctuation(char32_t c);
// Not marks (Mn, Mc, Me) in Unicode 9.
bool is_later_mark(char32_t c);
// Not nonspacing marks (Mn) in Unicode 8.
bool is_later_nonspacing_mark(char32_t c);
// Not format characters (Cf) in Unicode 8.
bool is_later_format(char32_t c);

}  // namespace brigade
