#include "brigade/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "brigade/base/error.h"
#include "brigade/chat/record.h"
#include "brigade/files/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Json = nlohmann::ordered_json;

std::string render(const std::string& source, const Json& messages = {}) {
  return ChatTemplate(source, "t.jinja", Json::object())
      .render(messages.is_null() ? Json::array() : messages)
      .text;
}

std::string complaint_about(const std::string& source) {
  return message_of<DataError>([&] { render(source); });
}

// goldens/make_goldens.py made them with transformers.
TEST(ChatTemplate, RendersAsTransformersDoes) {
  const Json goldens = Json::parse(
      read_text_file(BRIGADE_SOURCE_DIR "/tests/chat/goldens/chat.json"));
  for (const Json& entry : goldens["entries"]) {
    const std::string source = entry["template"].get<std::string>();
    const ChatOptions options{
        .add_generation_prompt = entry["add_generation_prompt"].get<bool>(),
        .tools = entry["tools"],
        .variables = entry["variables"],
        .now = goldens["now"].get<int64_t>()};
    SCOPED_TRACE(source + "\n" + entry["messages"].dump());
    const auto rendered = [&] {
      return ChatTemplate(source, "t", goldens["special_tokens"])
          .render(entry["messages"], options);
    };
    if (entry.contains("refused")) {
      EXPECT_THROW(rendered(), DataError) << entry["refused"];
      continue;
    }
    const RenderedChat chat = rendered();
    EXPECT_EQ(chat.text, entry["text"].get<std::string>());
    Json generation = Json::array();
    for (const jinja::Mark& mark : chat.marks) {
      if (mark.kind == jinja::Mark::Kind::kGeneration)
        generation.push_back({mark.begin, mark.end});
    }
    EXPECT_EQ(generation, entry.value("generation", Json::array()));
  }
}

TEST(ChatTemplate, MarksWhatComesFromWhichMessage) {
  const ChatTemplate chat(
      "{% for m in messages %}[{{ m.role }}]"
      "{{ m.content.split('|')[-1]|trim }};{% endfor %}",
      "t",
      Json::object());
  const RenderedChat text = chat.render(
      {{{"role", "user"}, {"content", "x| one "}},
       {{"role", "assistant"}, {"content", "two"}}});
  EXPECT_EQ(text.text, "[user]one;[assistant]two;");
  EXPECT_THAT(
      text.marks,
      ::testing::ElementsAre(jinja::Mark{6, 9, 0}, jinja::Mark{21, 24, 1}));
}

TEST(ChatTemplate, TrimTakesCharactersAsStripDoes) {
  EXPECT_EQ(
      render("[{{ ' a ' | trim }}][{{ ' a ' | trim('') }}]"
             "[{{ 'xax' | trim('x') }}][{{ 5 | trim }}]"),
      "[a][ a ][a][5]");
}

// Python's json module reads and writes them the same way.
TEST(ChatTemplate, WholeNumbersOfAnySizeStayAsTheyAreWritten) {
  const std::string message =
      R"({"n": 9223372036854775807, "m": 9223372036854775808, )"
      R"("k": -100000000000000000000, "l": [18446744073709551616]})";
  const Json messages =
      parse_record("[" + message + ", {\"f\": 1e20, \"g\": 1.0}]");
  EXPECT_EQ(render("{{ messages[0] | tojson }}", messages), message);
  EXPECT_EQ(
      render("{{ messages[0].m }} {{ messages[0].l }}", messages),
      "9223372036854775808 [18446744073709551616]");
  EXPECT_EQ(render("{{ messages[1].f }}", messages), "1e+20");
  EXPECT_EQ(
      render(
          "{{ messages[0].m | int }} {{ messages[0].l[0] | float }} "
          "{{ messages[0].m is number }} {{ messages[0].m is integer }} "
          "{{ messages[0].m == messages[0].n }} {{ 'a' if messages[0].m }}",
          messages),
      "9223372036854775808 1.8446744073709552e+19 True True False a");
  EXPECT_THAT(
      [&] { render("{{ messages[0].m + 1 }}", messages); },
      ThrowsMessage<DataError>(
          HasSubstr("'+' does not take values of types int beyond 64 bits")));
  EXPECT_EQ(
      render("{{ 9007199254740993 == 9007199254740992 }}"
             "{{ 9007199254740993 > 9007199254740992 }}"),
      "FalseTrue");
}

TEST(ChatTemplate, TextThatIsNoJsonIsNamedByItsByte) {
  try {
    parse_record("{\"a\": [1,]}");
    FAIL();
  } catch (const RecordSyntaxError& error) {
    EXPECT_EQ(error.byte, 10U);
    EXPECT_THAT(error.what(), HasSubstr("no JSON from byte 10 on"));
  }
  for (const char* text : {"", "{\"a\": 1} x", "\"\xFF\"", "nul"})
    EXPECT_THROW(parse_record(text), RecordSyntaxError) << text;
  const char* nested = R"([{"a":[{},[],{"b":null}],"c":{"d":[-1,2.5]}},"x"])";
  EXPECT_EQ(parse_record(nested).dump(), nested);
  EXPECT_EQ(parse_record("{\"a\": 1, \"a\": 2}").dump(), "{\"a\":2}");
}

TEST(ChatTemplate, FaultsAreNamedWithTheirLine) {
  EXPECT_THAT(
      complaint_about("a\n{% include 'x' %}"),
      HasSubstr("[chat] t.jinja:2: '{% include %}' is not supported"));
  EXPECT_THAT(
      complaint_about("{% if true %}\n\nx"),
      HasSubstr("t.jinja:3: '{% endif %}' is missing"));
  EXPECT_THAT(
      complaint_about("\n{{ 1 | wordwrap }}"),
      HasSubstr("t.jinja:2: the filter 'wordwrap' is not supported"));
  EXPECT_THAT(
      complaint_about("{{ 'a'.center(3) }}"),
      HasSubstr("the method center() of a string is not supported"));
  EXPECT_THAT(
      complaint_about("{{ 1 is prime }}"),
      HasSubstr("the test 'is prime' is not supported"));
  EXPECT_THAT(
      complaint_about("{{ nothing.x }}"), HasSubstr("'nothing' is undefined"));
  EXPECT_THAT(
      complaint_about("\n\n{{ raise_exception('Roles must alternate') }}"),
      HasSubstr("t.jinja:3: the template refuses: Roles must alternate"));
  EXPECT_THAT(
      complaint_about("{{ 1 \u20ac 2 }}"),
      HasSubstr("t.jinja:1: unexpected '\u20ac'"));
  EXPECT_THAT(
      complaint_about("{{ 1 \xE2\x82 }}"), HasSubstr("unexpected byte 0xe2"));
  EXPECT_THAT(
      complaint_about("{{ '10'|int(0, 2) }}"), HasSubstr("base 10 alone"));
  EXPECT_THAT(complaint_about("{{ 'a }}"), HasSubstr("a string does not end"));
  EXPECT_THAT(
      complaint_about("{{ '\\N{BULLET}' }}"),
      HasSubstr("'\\N{...}' is not supported"));
  EXPECT_THAT(
      complaint_about("{{ 'a\\\n' ~ 1 / 0 }}"), HasSubstr("t.jinja:2: "));
  EXPECT_THAT(complaint_about("{{ 1 / 0 }}"), HasSubstr("division by zero"));
}

TEST(ChatTemplate, AnEndlessOneEnds) {
  EXPECT_THAT(
      complaint_about("{% for a in range(3000) %}{% for b in range(3000) %}"
                      "{% endfor %}{% endfor %}"),
      HasSubstr("more than 2000000 steps"));
  EXPECT_THAT(
      complaint_about("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
      HasSubstr("macros call one another too deeply"));
  EXPECT_THAT(
      complaint_about("{{ 'abcd' * 99999999 }}"), HasSubstr("too often"));
  EXPECT_THAT(
      complaint_about(
          "{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"),
      HasSubstr("nested too deeply"));
}

TEST(ChatTemplate, IsFoundBesideTheTokenizer) {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return folder / name; };
  write_text_file(path("tokenizer.json"), "{}");
  const auto load = [&](const std::string& name = "") {
    return ChatTemplate::load(path("tokenizer.json").string(), name);
  };
  EXPECT_THAT(
      [&] { load(); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("has no chat template: put a "),
          HasSubstr("--template FILE"))));
  write_text_file(
      path("tokenizer_config.json"),
      R"({"chat_template": [{"name": "default", "template": "usual"},
          {"name": "tool_use", "template": "tools"}],
          "eos_token": {"content": "<end>"}, "bos_token": null})");
  EXPECT_EQ(load().source(), "usual");
  EXPECT_EQ(load("tool_use").source(), "tools");
  EXPECT_EQ(load().special_tokens(), Json({{"eos_token", "<end>"}}));
  write_text_file(
      path("chat_template.jinja"), "{{ eos_token }}|{{ bos_token }}");
  EXPECT_EQ(load().render(Json::array()).text, "<end>|");
  // Null is none, whatever an older file says, which the decoder replaces.
  write_text_file(
      path("special_tokens_map.json"),
      R"({"bos_token": "<s>", "pad_token": "<pad>"})");
  EXPECT_EQ(
      load().special_tokens(),
      Json({{"pad_token", "<pad>"}, {"eos_token", "<end>"}}));
  write_text_file(
      path("tokenizer_config.json"),
      R"({"added_tokens_decoder": {}, "eos_token": "<end>",
          "extra_special_tokens":
              {"image_token": "<img>", "eoi": {"content": "<eoi>"}}})");
  EXPECT_EQ(
      load().special_tokens(),
      Json(
          {{"eos_token", "<end>"},
           {"image_token", "<img>"},
           {"eoi", "<eoi>"}}));
}

// As transformers chooses.
TEST(ChatTemplate, AConversationWithToolsTakesTheOneForThem) {
  const TemporaryFolder folder;
  write_text_file(folder / "tokenizer.json", "{}");
  const auto load = [&](const std::string& name = "") {
    return ChatTemplate::load((folder / "tokenizer.json").string(), name);
  };
  const ChatOptions with_tools{.tools = Json::array()};
  write_text_file(
      folder / "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "usual"},
          {"name": "rag", "template": "documents"},
          {"name": "tool_use", "template": "{% generation %}tools{% endgeneration %}"}]})");
  EXPECT_EQ(load().render(Json::array()).text, "usual");
  EXPECT_EQ(load().render(Json::array(), with_tools).text, "tools");
  EXPECT_TRUE(load().for_tools(with_tools.tools).has_generation());
  EXPECT_FALSE(load().for_tools(nullptr).has_generation());
  EXPECT_EQ(load("rag").render(Json::array(), with_tools).text, "documents");
  // Files replace them all.
  std::filesystem::create_directory(folder / "additional_chat_templates");
  write_text_file(
      folder / "additional_chat_templates" / "tool_use.jinja", "file's tools");
  EXPECT_EQ(load().render(Json::array(), with_tools).text, "file's tools");
  EXPECT_THAT(
      [&] { load().render(Json::array()); },
      ThrowsMessage<DataError>(
          HasSubstr("none named default: choose one of tool_use with "
                    "--template-name")));
  EXPECT_THAT(
      [&] { load("rag"); },
      ThrowsMessage<DataError>(HasSubstr("no chat template named 'rag'")));
  write_text_file(folder / "chat_template.jinja", "file");
  EXPECT_EQ(load().render(Json::array()).text, "file");
  EXPECT_EQ(load().render(Json::array(), with_tools).text, "file's tools");
  // Only a conversation with tools needs it.
  write_text_file(
      folder / "additional_chat_templates" / "tool_use.jinja",
      "{% include 'other' %}");
  EXPECT_EQ(load().render(Json::array()).text, "file");
  EXPECT_THAT(
      [&] { load().render(Json::array(), with_tools); },
      ThrowsMessage<DataError>(
          AllOf(HasSubstr("tool_use.jinja:1"), HasSubstr("include"))));
}

}  // namespace
}  // namespace brigade
