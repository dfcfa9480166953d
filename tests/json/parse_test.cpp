#include "brigade/json/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<JsonFault> faults_of(
    std::string_view text,
    const JsonLimits& limits = {}) {
  std::vector<JsonFault> faults;
  parse_json(text, limits, faults);
  return faults;
}

// "2:5 problem", or "2:5 /pointer: problem".
std::string fault_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto faults = faults_of(text, limits);
  if (faults.size() != 1)
    return std::to_string(faults.size()) + " faults";
  const JsonPlace place = place_of(text, faults[0].offset);
  return std::to_string(place.line) + ":" + std::to_string(place.column) + " " +
         (faults[0].pointer.empty() ? "" : faults[0].pointer + ": ") +
         faults[0].problem;
}

// The oracle is nlohmann's own document parser.
TEST(ParseJson, ValidTextGivesTheSameValueAsNlohmannsParser) {
  for (const char* text :
       {"null",
        " true ",
        "-12",
        "18446744073709551615",
        "1.5e3",
        "\"a\\u00e9\\n\\ud83d\\ude00\"",
        "[]",
        "{}",
        "\xEF\xBB\xBF[1]",
        "[1,[2,[3,{}],[]],\"x\"]",
        R"({"a": {"b": [1, {"c": null}], "": 2}, "d": [[], {}, false]})"}) {
    std::vector<JsonFault> faults;
    const auto value = parse_json(text, {}, faults);
    EXPECT_THAT(faults, IsEmpty()) << text;
    EXPECT_EQ(value.value(), json::parse(text)) << text;
  }
}

TEST(ParseJson, SyntaxErrorsSayWhatWasExpectedAndFoundAndWhere) {
  struct Case {
    const char* text;
    const char* fault;
  };
  for (const auto& [text, fault] :
       {Case{"", "1:1 the text is empty; expected a JSON value"},
        Case{"  \n ", "2:2 the text is empty; expected a JSON value"},
        Case{"x", "1:1 expected a JSON value, found 'x'"},
        Case{"{} x", "1:4 expected nothing after the JSON value, found 'x'"},
        Case{"1 2", "1:3 expected nothing after the JSON value, found '2'"},
        Case{
            "{\n  \"a\": 1,\n}",
            "3:1 /a: expected a key in double quotes after the comma, found "
            "'}'"},
        Case{
            "{\"a\": \"x\",}",
            "1:11 /a: expected a key in double quotes after the comma, found "
            "'}'"},
        Case{"{a: 1}", "1:2 expected a key in double quotes or '}', found 'a'"},
        Case{
            "{\"a\" 1}", "1:6 /a: expected ':' after the key \"a\", found '1'"},
        Case{
            "{\"a\": tru\n}",
            "1:7 /a: expected a value for the key \"a\", found 'tru'"},
        Case{
            "{\"a\": 1 \"b\": 2}",
            "1:9 /a: expected ',' or '}', found a string"},
        Case{
            "[1, 2",
            "1:6 /2: the text ends where ',' or ']' should come; the "
            "array that begins at line 1, column 1 is not closed"},
        Case{"[1,]", "1:4 /1: expected a value after the comma, found ']'"},
        Case{"[1 2]", "1:4 /1: expected ',' or ']', found '2'"},
        Case{"[,]", "1:2 /0: expected a value or ']', found ','"},
        Case{
            "[\n {\"b\": [",
            "2:9 /0/b/0: the text ends where a value or ']' "
            "should come; the array that begins at line 2, "
            "column 8 is not closed"},
        Case{
            "[1e999]",
            "1:2 /0: the number 1e999 is beyond the range of a "
            "double"},
        Case{"[\"abc", "1:6 /0: a string has no end"},
        Case{"[\"a\\q\"]", "1:4 /0: a string holds an unknown escape"},
        Case{"[\"a\nb\"]", "1:4 /0: a string holds the control byte 0x0a"},
        Case{
            "{\"a\": \"\xff\"}",
            "1:8 /a: a string holds byte 0xff, which is not UTF-8"},
        Case{"\x01", "1:1 expected a JSON value, found byte 0x01"}})
    EXPECT_EQ(fault_of(text), fault) << text;
}

TEST(ParseJson, AKeyThatStandsTwiceIsAFaultAtTheSecondOne) {
  const std::string text =
      "{\"a\": 1,\n \"b\": [0, {\"c\": 1, \"c\": 2}],\n"
      " \"a\": 3}";
  std::vector<JsonFault> faults;
  const auto value = parse_json(text, {}, faults);
  ASSERT_THAT(faults, SizeIs(2));
  EXPECT_EQ(faults[0].pointer, "/b/1/c");
  EXPECT_EQ(faults[0].offset, text.rfind("\"c\""));
  EXPECT_EQ(faults[1].pointer, "/a");
  EXPECT_EQ(faults[1].offset, text.rfind("\"a\""));
  EXPECT_THAT(faults[1].problem, HasSubstr("appears twice"));
  EXPECT_EQ(value.value(), json::parse(text));  // the last one
}

TEST(ParseJson, DepthAndSizeAreLimited) {
  EXPECT_EQ(
      fault_of("[[[]]]", {.max_depth = 2}),
      "1:3 /0/0: nested deeper than 2 levels");
  EXPECT_THAT(faults_of("[[[]]]", {.max_depth = 3}), IsEmpty());
  EXPECT_EQ(
      fault_of("[1, 2]", {.max_bytes = 5}),
      "1:1 the text has 6 bytes, above the limit of 5");
  EXPECT_THAT(
      faults_of(std::string(1'000'000, '[')),
      ::testing::ElementsAre(::testing::Field(
          &JsonFault::problem, "nested deeper than 64 levels")));
}

TEST(ParseJson, EveryValueIsFoundAtItsPlace) {
  const std::string text =
      "{ \"a\" : [ 10 , -2.5e1, \"]\" , true ] ,\n"
      "  \"b/c\":{\"d~\":null , \"e\":[{}]},\"f\":7 }";
  const auto at = [&](const char* pointer) {
    return text.substr(find_offset(text, pointer));
  };
  EXPECT_EQ(find_offset(text, ""), 0U);
  EXPECT_THAT(at("/a"), ::testing::StartsWith("[ 10"));
  EXPECT_THAT(at("/a/0"), ::testing::StartsWith("10"));
  EXPECT_THAT(at("/a/1"), ::testing::StartsWith("-2.5e1"));
  EXPECT_THAT(at("/a/2"), ::testing::StartsWith("\"]\""));
  EXPECT_THAT(at("/a/3"), ::testing::StartsWith("true"));
  EXPECT_THAT(at("/b~1c"), ::testing::StartsWith("{\"d~\""));
  EXPECT_THAT(at("/b~1c/d~0"), ::testing::StartsWith("null"));
  EXPECT_THAT(at("/b~1c/e/0"), ::testing::StartsWith("{}"));
  EXPECT_THAT(at("/f"), ::testing::StartsWith("7 }"));
  // A missing value has its parent's place.
  EXPECT_THAT(at("/b~1c/x/y"), ::testing::StartsWith("{\"d~\""));
}

TEST(ShowJson, IsOneShortLine) {
  EXPECT_EQ(show_json(json::parse("{\"a\": [1, 2]}")), "{\"a\":[1,2]}");
  const std::string shown = show_json(std::string(1000, 'x'));
  EXPECT_EQ(shown.size(), 80U);
  EXPECT_THAT(shown, ::testing::EndsWith("..."));
}

}  // namespace
}  // namespace brigade
