#include "brigade/json/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/json/string_member.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

constexpr const char* kText =
    "{\"name\": \"x\",\n"
    " \"list\": [1, 18446744073709551615, 2.5, null],\n"
    " \"flag\": true, \"nothing\": null}";

// The message that `read` throws, given the root of kText.
template <class Read>
std::string error_of(const Read& read) {
  const JsonDocument document(kText, {"test", "file.json"});
  return message_of<DataError>([&] { read(document.root()); });
}

TEST(JsonNode, ReadsValuesOfTheirTypes) {
  const JsonDocument document(kText, {"test", "file.json"});
  const JsonNode root = document.root();
  EXPECT_EQ(root.at("name").string(), "x");
  EXPECT_EQ(root.at("list").size(), 4U);
  EXPECT_EQ(root.at("list").element(0).integer(0, 9), 1);
  EXPECT_TRUE(root.at("flag").boolean());
  EXPECT_TRUE(root.boolean_at("absent", true));
  EXPECT_FALSE(root.find("nothing").has_value());
  EXPECT_FALSE(root.find("absent").has_value());
  EXPECT_EQ(root.at("list").element(2).pointer(), "/list/2");
  const std::vector<JsonNode> elements = root.at("list").elements();
  EXPECT_EQ(elements.size(), 4U);
  EXPECT_EQ(elements.back().pointer(), "/list/3");
}

TEST(JsonNode, ErrorsNameFileLineColumnPointerAndTypes) {
  using Root = const JsonNode&;
  EXPECT_EQ(
      error_of([](Root root) { root.at("name").boolean(); }),
      "[test] file.json:1:10: at /name: expected true or false, found a "
      "string");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").string(); }),
      "[test] file.json:2:10: at /list: expected a string, found an array");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").element(3).require_object(); }),
      "[test] file.json:2:41: at /list/3: expected an object, found null");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").element(1).integer(0, 5); }),
      "[test] file.json:2:14: at /list/1: 18446744073709551615 is outside 0 to "
      "5");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").element(0).integer(2, 5); }),
      "[test] file.json:2:11: at /list/0: 1 is outside 2 to 5");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").element(2).integer(0, 5); }),
      "[test] file.json:2:36: at /list/2: expected an integer, found 2.5");
  EXPECT_EQ(
      error_of([](Root root) { root.at("flag").size(); }),
      "[test] file.json:3:10: at /flag: expected an array, found a boolean");
  EXPECT_EQ(
      error_of([](Root root) { root.at("absent"); }),
      "[test] file.json:1:1: at /: the key \"absent\" is missing");
  EXPECT_EQ(
      error_of([](Root root) { root.at("list").fail_at("9", "too many"); }),
      "[test] file.json:2:10: at /list/9: too many");
}

TEST(JsonDocument, FaultsOfTheTextAreDataErrorsWithTheirPlace) {
  const auto error = [](const char* text) -> std::string {
    return message_of<DataError>([&] {
      JsonDocument(text, {"test", "file.json"});
    });
  };
  EXPECT_EQ(
      error("{\n\"a\": 1 2}"),
      "[test] file.json:2:8: not valid JSON, at /a: expected ',' or '}', found "
      "'2'");
  EXPECT_EQ(
      error("{\"a\": 1, \"a\": 2}"),
      "[test] file.json:1:10: not valid JSON, at /a: this key appears twice in "
      "its object; remove one");
}

TEST(JsonDocument, ErrorsCountLinesFromItsFirstLine) {
  const JsonDocument document(
      R"({"a": 1})", {.module = "test", .file = "x.jsonl", .first_line = 7});
  EXPECT_THAT(
      [&] { document.root().at("a").string(); },
      ::testing::ThrowsMessage<DataError>(
          "[test] x.jsonl:7:7: at /a: expected a string, found a number"));
}

TEST(StringMember, IsFoundAmongAnythingElse) {
  using Outcome = StringMember::Outcome;
  struct Case {
    const char* text;
    Outcome outcome;
    const char* value;
  };
  for (const auto& [text, outcome, value] :
       {Case{R"({"text": "a\nb"})", Outcome::kString, "a\nb"},
        Case{
            R"({"x": {"text": "no"}, "y": ["text"], "text": "yes"})",
            Outcome::kString,
            "yes"},
        Case{R"({"x": {"text": "no"}})", Outcome::kAbsent, ""},
        Case{R"({"text": {"text": "no"}})", Outcome::kOtherType, ""},
        Case{R"({"text": ["no"]})", Outcome::kOtherType, ""},
        Case{R"({"text": null})", Outcome::kOtherType, ""},
        Case{R"({})", Outcome::kAbsent, ""},
        // What is no JSON in other members is not to blame.
        Case{R"({"x": NaN})", Outcome::kAbsent, ""},
        Case{R"({"x": NaN, "text": -1})", Outcome::kOtherType, ""},
        Case{R"({"text": Infinity})", Outcome::kOtherType, ""},
        Case{R"({"text": [1e999, "text"]})", Outcome::kOtherType, ""},
        Case{R"(["text"])", Outcome::kNoObject, ""},
        Case{R"("text")", Outcome::kNoObject, ""}}) {
    StringMember member;
    EXPECT_FALSE(find_string_member(text, "text", member)) << text;
    EXPECT_EQ(member.outcome, outcome) << text;
    EXPECT_EQ(member.text, value) << text;
  }
  StringMember member;
  const auto fault = find_string_member("{\"text\": \"a\",]", "text", member);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->offset, 13U);
}

}  // namespace
}  // namespace brigade
