// What is wrong with a tokenizer.json, or not supported, is named with its
// JSON path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Json base() {
  return Json::parse(R"({
    "version": "1.0",
    "added_tokens": [
      {"id": 4, "content": "<s>", "single_word": false, "lstrip": false,
       "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3},
              "merges": ["a b"]}})");
}

Json split(const char* regex, const char* behavior = "Isolated") {
  return {
      {"type", "Split"},
      {"pattern", {{"Regex", regex}}},
      {"behavior", behavior},
      {"invert", false}};
}

std::string error_of(const std::string& text) {
  return message_of<DataError>([&] { HuggingFaceTokenizer(text, "FILE"); });
}

struct Case {
  const char* path;  // the value to change, as a JSON pointer
  Json value;
  const char* complaint_path;
  const char* complaint;
};

TEST(TokenizerErrors, TheBaseOfTheseTestsIsValid) {
  const HuggingFaceTokenizer tokenizer(base().dump(), "FILE");
  EXPECT_EQ(tokenizer.encode("ab<s>ba"), (Ids{2, 4, 1, 0}));
}

TEST(TokenizerErrors, EachIsNamedWithItsPath) {
  const std::vector<Case> cases = {
      {"/version", "2.0", "/version", "version \"2.0\""},
      {"/model", nullptr, "/model", "expected an object, found null"},
      {"/model/type", "WordLevel", "/model/type", "the model \"WordLevel\""},
      {"/model/type", "Unigram", "/model/vocab", "expected an array"},
      {"/model/type",
       "WordPiece",
       "/model",
       "the key \"continuing_subword_prefix\" is missing"},
      {"/model/vocab", Json::array(), "/model/vocab", "expected an object"},
      {"/model/vocab/a", -1, "/model/vocab/a", "found -1"},
      {"/model/vocab/a", "0", "/model/vocab/a", "expected an id"},
      {"/model/vocab/a", 1, "/model/vocab/b", "id 1 also belongs to \"a\""},
      {"/model/vocab/a", 4294967296, "/model/vocab/a", "4294967296"},
      {"/model/merges", "a b", "/model/merges", "expected an array"},
      {"/model/merges/0", "ab", "/model/merges/0", "one space"},
      {"/model/merges/0", "a c", "/model/merges/0", "\"c\" is not in"},
      {"/model/merges/0", "b a", "/model/merges/0", "\"ba\" is not in"},
      {"/model/merges/0", "a  b", "/model/merges/0", "one space"},
      {"/model/merges/0", 7, "/model/merges/0", "[\"left\", \"right\"]"},
      {"/model/merges/0", {"a", ""}, "/model/merges/0", "is empty"},
      {"/model/dropout", 0.1, "/model/dropout", "dropout is not supported"},
      {"/model/continuing_subword_prefix",
       "##",
       "/model/merges/0",
       "the second token \"b\" does not begin with"},
      {"/model/end_of_word_suffix",
       3,
       "/model/end_of_word_suffix",
       "expected a string"},
      {"/model/byte_fallback",
       1,
       "/model/byte_fallback",
       "expected true or false, found a number"},
      {"/added_tokens", 3, "/added_tokens", "expected an array"},
      {"/added_tokens/0/id", 9, "/added_tokens/0/id", "the next free id is 4"},
      {"/added_tokens/0/content",
       "ab",
       "/added_tokens/0/id",
       "elsewhere in the file 2"},
      {"/added_tokens/0/content", "", "/added_tokens/0/content", "is empty"},
      {"/added_tokens/0/special",
       "yes",
       "/added_tokens/0/special",
       "expected true or false"},
      {"/added_tokens/0/id", 2.5, "/added_tokens/0/id", "expected an integer"},
      {"/normalizer",
       {{"type", "Other"}},
       "/normalizer",
       "the normalizer \"Other\" is not supported"},
      {"/normalizer",
       {{"type", "BertNormalizer"}, {"clean_text", true}},
       "/normalizer",
       "the key \"handle_chinese_chars\" is missing"},
      {"/normalizer",
       {{"type", "Prepend"}},
       "/normalizer",
       "the key \"prepend\" is missing"},
      {"/normalizer",
       {{"type", "Sequence"},
        {"normalizers", {{{"type", "NFC"}}, {{"type", "Precompiled"}}}}},
       "/normalizer/normalizers/1",
       "the key \"precompiled_charsmap\" is missing"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA"}},
       "/normalizer/precompiled_charsmap",
       "expected base64"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "A=AA"}},
       "/normalizer/precompiled_charsmap",
       "expected base64"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}},
       "/normalizer/pattern/String",
       "empty"},
      {"/pre_tokenizer",
       {{"type", "UnicodeScripts"}},
       "/pre_tokenizer",
       "the pre-tokenizer \"UnicodeScripts\""},
      {"/pre_tokenizer",
       split("a", "Sometimes"),
       "/pre_tokenizer/behavior",
       "unknown behavior \"Sometimes\""},
      {"/pre_tokenizer",
       split("a(b"),
       "/pre_tokenizer/pattern/Regex",
       "a(b has a ( without )"},
      {"/pre_tokenizer",
       split("a(?~b)"),
       "/pre_tokenizer/pattern/Regex",
       "an absent operator (?~...) in the regular expression a(?~b) is not "
       "supported"},
      {"/pre_tokenizer",
       split("(?<=a+)b"),
       "/pre_tokenizer/pattern/Regex",
       "a look-behind of variable length"},
      {"/pre_tokenizer",
       split("[z-a]"),
       "/pre_tokenizer/pattern/Regex",
       "a range that ends before it begins"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"},
        {"replacement", "ab"},
        {"prepend_scheme", "always"}},
       "/pre_tokenizer/replacement",
       "one character"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"},
        {"replacement", "_"},
        {"add_prefix_space", false},
        {"prepend_scheme", "always"}},
       "/pre_tokenizer/prepend_scheme",
       "contradicts"},
      {"/post_processor",
       {{"type", "Other"}},
       "/post_processor",
       "the post-processor \"Other\""},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
        {"special_tokens", Json::object()}},
       "/post_processor/special_tokens",
       "\"<s>\" is missing"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"Sequence", {{"id", "B"}}}}}}},
       "/post_processor/single/0/Sequence/id",
       "sequence A"},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"cls", {"<s>", 77}}, {"sep", {"<s>", 4}}},
       "/post_processor",
       "adds id 77"},
      {"/decoder",
       {{"type", "CTC"}},
       "/decoder",
       "the decoder \"CTC\" is not supported; docs/tokenizers.md lists"},
      {"/decoder",
       {{"type", "WordPiece"}, {"prefix", "##"}},
       "/decoder",
       "the key \"cleanup\" is missing"},
      {"/decoder",
       {{"type", "BPEDecoder"}, {"suffix", ""}},
       "/decoder/suffix",
       "the suffix is empty"},
      {"/decoder",
       {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}},
       "/decoder/start",
       "-1 is outside 0"},
  };
  for (const Case& test : cases) {
    Json json = base();
    json[Json::json_pointer(test.path)] = test.value;
    const std::string error = error_of(json.dump());
    EXPECT_NE(
        error.find(std::string(": at ") + test.complaint_path + ": "),
        std::string::npos)
        << error;
    EXPECT_NE(error.find(test.complaint), std::string::npos) << error;
  }
}

TEST(TokenizerErrors, AMissingPartIsNamed) {
  for (const char* key : {"vocab", "merges"}) {
    Json json = base();
    json["model"].erase(key);
    EXPECT_NE(error_of(json.dump()).find(key), std::string::npos);
  }
  Json json = base();
  json.erase("model");
  EXPECT_NE(
      error_of(json.dump()).find("\"model\" is missing"), std::string::npos);
}

TEST(TokenizerErrors, TextThatIsNotJsonIsNamedWithItsByte) {
  const std::string text = base().dump();
  EXPECT_NE(
      error_of(text.substr(0, 40)).find("FILE:1:41: not valid"),
      std::string::npos)
      << error_of(text.substr(0, 40));
  EXPECT_NE(error_of("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("[1e999]").find("not valid JSON"), std::string::npos);
  EXPECT_NE(
      error_of("{\"a\": \"\xFF\"}").find("not valid JSON"), std::string::npos);
}

TEST(TokenizerErrors, SequencesWithoutEndAreRefused) {
  const auto error_of_nested = [](int depth) {
    Json node = {{"type", "NFC"}};
    for (int i = 0; i < depth; ++i)
      node = {{"type", "Sequence"}, {"normalizers", {node}}};
    Json json = base();
    json["normalizer"] = node;
    return error_of(json.dump());
  };
  EXPECT_NE(
      error_of_nested(20).find("sequences nest deeper than 16"),
      std::string::npos);
  EXPECT_NE(
      error_of_nested(1000).find("nested deeper than 64 levels"),
      std::string::npos);
}

TEST(TokenizerErrors, ARegexThatBacktracksWithoutEndIsStoppedAndNamed) {
  Json json = base();
  json["pre_tokenizer"] = split("(a|aa)+[^a]");
  const HuggingFaceTokenizer tokenizer(json.dump(), "FILE");
  EXPECT_THAT(
      [&] { tokenizer.encode(std::string(200, 'a')); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("/pre_tokenizer/pattern/Regex"), HasSubstr("limit"))));
}

TEST(TokenizerErrors, AnUnknownTokenThatIsNeededButMissingIsNamed) {
  Json json = base();
  json["model"]["unk_token"] = "<unk>";
  const HuggingFaceTokenizer tokenizer(json.dump(), "FILE");
  EXPECT_EQ(tokenizer.encode("ab"), Ids{2});
  EXPECT_THAT(
      [&] { tokenizer.encode("aé"); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("/model/unk_token: \"<unk>\""), HasSubstr("U+00E9"))));
}

TEST(TokenizerFolder, BosAndEosComeFromTheConfigBeside) {
  const TemporaryFolder folder;
  write_text_file(folder / "tokenizer.json", base().dump());
  auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->bos_id(), 4);  // by its usual name
  EXPECT_EQ(tokenizer->eos_id(), std::nullopt);
  write_text_file(
      folder / "tokenizer_config.json",
      R"({"bos_token": null, "eos_token": {"content": "ab"}})");
  tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->token_text(4), "<s>");
  EXPECT_EQ(tokenizer->token_id("ab"), 2);
  EXPECT_EQ(tokenizer->token_id("zz"), std::nullopt);
  EXPECT_NE(
      tokenizer->description().find("BPE with 1 merges, 5 tokens"),
      std::string::npos);
}

// Merges of tokens that hold spaces, as in Llama 2's file.
TEST(TokenizerMerges, ALineWithSeveralSpacesIsReadIfThereIsOneWay) {
  Json json = base();
  json["model"]["vocab"] = {{" ", 0}, {"  ", 1}, {"a", 2}, {"a ", 3}};
  json["model"]["merges"] = {"   ", "a  "};
  const HuggingFaceTokenizer tokenizer(json.dump(), "FILE");
  EXPECT_EQ(tokenizer.encode("a  "), (Ids{2, 1}));
  EXPECT_EQ(tokenizer.encode("a "), Ids{3});
  // "a" + " " + " " could now also be "a " and " ".
  json["model"]["vocab"]["a  "] = 4;
  json["added_tokens"] = Json::array();
  json["model"]["merges"] = {"a   "};
  EXPECT_NE(error_of(json.dump()).find("/model/merges/0"), std::string::npos);
}

TEST(TokenizerRegex, ReadsPatternsAsOnigurumaDoes) {
  const JsonDocument nothing("{}", {"tokenizer", "FILE"});
  const JsonNode place = nothing.root();
  RegexScratch scratch;
  const auto matches = [&](const char* pattern, std::string_view text) {
    std::vector<std::string> found;
    for_each_match(
        Regex(pattern, place), text, scratch, [&](size_t begin, size_t end) {
          found.emplace_back(text.substr(begin, end - begin));
        });
    return found;
  };
  using Strings = std::vector<std::string>;
  EXPECT_EQ(matches("\\s", "a\u180E\u3000"), Strings{"\u3000"});
  EXPECT_EQ(matches("[^\\S]", "a\u180E\u3000"), Strings{"\u3000"});
  EXPECT_EQ(
      matches("\\w+", "e\u0301_x-\u00B2"), (Strings{"e\u0301_x", "\u00B2"}));
  EXPECT_EQ(matches("\\h+", "xBEEFg"), Strings{"BEEF"});  // hex digits
  EXPECT_EQ(matches("^.", "ab\ncd"), (Strings{"a", "c"}));
  EXPECT_EQ(matches("(?m:.)", "\n"), Strings{"\n"});
  EXPECT_EQ(matches("\\p{Han}+", "\u4E00\u3001"), Strings{"\u4E00"});
  EXPECT_EQ(matches("\\p{^L}", "a1"), Strings{"1"});
  EXPECT_EQ(matches("[]a]+", "b]a["), Strings{"]a"});
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
  EXPECT_EQ(matches("(?i:'S)", "'\u017F's"), (Strings{"'\u017F", "'s"}));
}

}  // namespace
}  // namespace brigade
