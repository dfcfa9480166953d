#include "brigade/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace brigade {
namespace {

// What Hugging Face's engine 0.23.3 gives, with WordLevel's ? for the text
// between; at the last one it panics ("AddedVocabulary bad split").
TEST(AddedTokenMatcher, WhatIsTakenAlongIsNoTokenOfItsOwn) {
  AddedTokenMatcher matcher;
  matcher.add("<a>", {.id = 1, .rstrip = true});
  matcher.add("\n", {.id = 2, .lstrip = true});
  const auto ids = [&](std::string_view text) {
    std::string result;
    matcher.cut(
        text,
        [&](size_t begin, size_t end) {
          EXPECT_LT(begin, end);
          result += '?';
        },
        [&](const AddedToken& token, size_t, size_t) {
          result += std::to_string(token.id);
        });
    return result;
  };
  EXPECT_EQ(ids("<a>\n"), "1");
  EXPECT_EQ(ids("<a> \nx"), "1?");
  EXPECT_EQ(ids("<a>\n<a>"), "11");
  EXPECT_EQ(ids("x \n \n y"), "?22?");
  EXPECT_EQ(ids("<a>\n\nx\n"), "1?2");
}

TEST(AddedTokenCuts, LieWithinNoTokenAndNotBehindOne) {
  AddedTokenCuts cuts;
  cuts.add("<|im|>", {.id = 1});
  const std::string text = "ab<|im|>cd";  // the token is [2, 8)
  EXPECT_EQ(cuts.cut_before(text, 1), 1U);
  EXPECT_EQ(cuts.cut_before(text, 2), 2U);  // it begins the next part
  for (size_t at = 3; at <= 8; ++at)
    EXPECT_EQ(cuts.cut_before(text, at), 2U) << at;
  EXPECT_EQ(cuts.cut_before(text, 9), 9U);
  EXPECT_EQ(cuts.cut_before("AB<|IM|>CD", 5), 2U);
}

TEST(AddedTokenCuts, LieBetweenTwoTokens) {
  AddedTokenCuts cuts;
  cuts.add("<a>", {.id = 1});
  cuts.add("<bb>", {.id = 2});
  const std::string text = "x<a><bb><a>y";
  EXPECT_EQ(cuts.cut_before(text, 4), 4U);
  EXPECT_EQ(cuts.cut_before(text, 6), 4U);
  EXPECT_EQ(cuts.cut_before(text, 11), 8U);
}

TEST(AddedTokenCuts, DoNotLieInTheWhiteSpaceThatATokenTakesAlong) {
  AddedTokenCuts cuts;
  cuts.add("<l>", {.id = 1, .lstrip = true});
  cuts.add("<r>", {.id = 2, .rstrip = true});
  const std::string left = "ab  \n<l>cd";
  for (size_t at = 3; at <= 5; ++at)
    EXPECT_EQ(cuts.cut_before(left, at), 2U) << at;
  const std::string right = "ab<r>  \ncd";
  for (size_t at = 5; at <= 8; ++at)
    EXPECT_EQ(cuts.cut_before(right, at), 2U) << at;
  EXPECT_EQ(cuts.cut_before(right, 9), 9U);
}

TEST(AddedTokenCuts, OverlappingTokensAreAllKeptWhole) {
  AddedTokenCuts cuts;
  cuts.add("ab", {.id = 1});
  cuts.add("bcd", {.id = 2});
  EXPECT_EQ(cuts.cut_before("xabcdy", 4), 1U);
}

}  // namespace
}  // namespace brigade
