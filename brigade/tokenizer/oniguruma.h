// Regular expressions as Oniguruma means them (its default syntax, which
// Hugging Face's engine uses), rewritten for PCRE2.
//
// The two engines read many patterns differently: {n,m}+ repeats an interval in
// one and makes it possessive in the other, {,n} is literal text in PCRE2, and
// so on. So the pattern is parsed by Oniguruma's grammar (doc/RE of version
// 6.9) and written again from what was read: nothing passes through unread.
// What PCRE2 cannot say is refused: absent operators, callouts, conditions,
// calls of groups, text segments (\X, \y), raw bytes above 0x7F, ASCII options
// ((?W)), and, without regard to case, what folds to several characters.
#pragma once

#include <string>

namespace brigade {

class JsonNode;

// The pattern for PCRE2 with UTF, UCP and MULTILINE. Throws DataError at
// `place` for a pattern that Oniguruma would refuse or that has no equivalent.
std::string to_pcre2(const std::string& pattern, const JsonNode& place);

}  // namespace brigade
