// Where UTF-8 characters end, and which bytes form none.
#include "brigade/base/utf8.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

TEST(Utf8, ValidPrefixStopsAtTheFirstIllFormedByte) {
  EXPECT_EQ(valid_utf8_prefix("plain ascii text"), 16U);
  EXPECT_EQ(valid_utf8_prefix("eight by\xC3\xA9"), 10U);
  EXPECT_EQ(valid_utf8_prefix("ab\xC0\x80"), 2U);         // overlong
  EXPECT_EQ(valid_utf8_prefix("a\xED\xA0\x80"), 1U);      // surrogate
  EXPECT_EQ(valid_utf8_prefix("a\xF4\x90\x80\x80"), 1U);  // > U+10FFFF
  EXPECT_EQ(valid_utf8_prefix("a\xE2\x82"), 1U);          // truncated
  for (const char32_t c :
       {U'\0',
        U'a',
        U'\x7F',
        U'\x80',
        U'\x7FF',
        U'\x800',
        U'\xFFFD',
        U'\x10000',
        U'\x10FFFF'}) {
    std::string text;
    append_utf8(text, c);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
    EXPECT_EQ(utf8_code_point(text, 0), c);
    EXPECT_EQ(utf8_length(text[0]), text.size());
  }
}

TEST(Utf8, AnIllFormedPartHasTheLengthThatPythonReplaces) {
  EXPECT_EQ(utf8_step("\xF0\x9F\x98z", 0).length, 3U);  // cut off
  EXPECT_FALSE(utf8_step("\xF0\x9F\x98z", 0).valid);
  EXPECT_EQ(utf8_step("\xED\xA0\x80", 0).length, 1U);  // a surrogate
  EXPECT_EQ(utf8_step("a\xC3\xA9", 1).length, 2U);
  EXPECT_TRUE(utf8_step("a\xC3\xA9", 1).valid);
}

TEST(Utf8, CharactersAreCountedAndFoundBackwards) {
  const std::string text = "a\xC3\xA9\xF0\x9F\x98\x80";
  EXPECT_EQ(count_characters(text), 3U);
  EXPECT_EQ(utf8_character_before(text, text.size()), 3U);
  EXPECT_EQ(utf8_character_before(text, 3), 1U);
}

}  // namespace
}  // namespace brigade
