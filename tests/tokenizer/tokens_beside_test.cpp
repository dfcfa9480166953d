// Tokens that the files beside a tokenizer.json add. What is expected is what
// transformers 5.23's AutoTokenizer gives for the same folders.
#include "brigade/tokenizer/tokens_beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using BesideIds = std::vector<int32_t>;
using BesideId = std::optional<int32_t>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kBesideTokenizer = R"({
  "version": "1.0",
  "added_tokens": [
    {"id": 4, "content": "<s>", "single_word": false, "lstrip": false,
     "rstrip": false, "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "unk_token": "?",
            "vocab": {"a": 0, "b": 1, "?": 2, " ": 3}, "merges": []}})";

struct BesideCase {
  const char* name;
  const char* config;  // tokenizer_config.json; "": none
  const char* map;     // special_tokens_map.json
  const char* added;   // added_tokens.json
  int64_t vocab_size;
  BesideIds ids;  // of "a <n>b<p><s>"
  BesideId bos;
  BesideId eos;
  const char* text;  // of the ids, without special tokens
};

const std::vector<BesideCase> kBesideCases = {
    {"at its id",
     R"({"bos_token": null, "eos_token": null, "added_tokens_decoder":
         {"5": {"content": "<n>", "special": true}}})",
     "",
     "",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     {},
     {},
     "a b???"},
    {"null means none",
     R"({"bos_token": null, "eos_token": "<s>"})",
     "",
     "",
     5,
     {0, 3, 2, 2, 2, 1, 2, 2, 2, 4},
     {},
     4,
     "a ???b???"},
    {"in special_tokens_map.json too",
     R"({"eos_token": "<s>"})",
     R"({"bos_token": null})",
     "",
     5,
     {0, 3, 2, 2, 2, 1, 2, 2, 2, 4},
     {},
     4,
     "a ???b???"},
    {"in the order of numbers, without gaps",
     R"({"added_tokens_decoder":
         {"10": {"content": "<n>"}, "9": {"content": "<p>"}}})",
     "",
     "",
     7,
     {0, 3, 6, 1, 5, 4},
     4,
     {},
     "a <n>b<p>"},
    {"at an id that another has",
     R"({"added_tokens_decoder": {"4": {"content": "<n>"}}})",
     "",
     "",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a <n>b???"},
    {"with other flags",
     R"({"added_tokens_decoder": {"4": {"content": "<s>"},
         "5": {"content": "<n>", "lstrip": true}}})",
     "",
     "",
     6,
     {0, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a<n>b???"},
    {"twice",
     R"({"added_tokens_decoder": {"5": {"content": "<n>"},
         "6": {"content": "<n>", "lstrip": true}}})",
     "",
     "",
     6,
     {0, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a<n>b???"},
    {"by names",
     R"({"pad_token": "<p>", "bos_token": "<s>", "eos_token": "<n>"})",
     "",
     "",
     7,
     {0, 3, 5, 1, 6, 4},
     4,
     5,
     "a b"},
    {"by a model's own names",
     R"({"z_token": "<p>", "a_token": "<n>", "add_bos_token": true})",
     "",
     "",
     7,
     {0, 3, 6, 1, 5, 4},
     4,
     {},
     "a b"},
    {"in a list; and one of the vocabulary",
     R"({"extra_special_tokens": ["<p>", "<n>"], "bos_token": "a"})",
     "",
     "",
     7,
     {0, 3, 6, 1, 5, 4},
     0,
     {},
     " b"},
    {"in a list by its older name",
     R"({"additional_special_tokens": ["<n>"]})",
     "",
     "",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a b???"},
    {"in both lists",
     R"({"additional_special_tokens": ["<n>"],
         "extra_special_tokens": ["<p>"]})",
     "",
     "",
     6,
     {0, 3, 2, 2, 2, 1, 5, 4},
     4,
     {},
     "a ???b"},
    {"special by a name",
     R"({"eos_token": "<n>", "added_tokens_decoder":
         {"5": {"content": "<n>"}, "6": {"content": "<p>"}}})",
     "",
     "",
     7,
     {0, 3, 5, 1, 6, 4},
     4,
     5,
     "a b<p>"},
    {"special_tokens_map.json is read",
     R"({"bos_token": "<s>"})",
     R"({"eos_token": {"content": "<n>", "lstrip": true}, "bos_token": "a"})",
     "",
     6,
     {0, 5, 1, 2, 2, 2, 4},
     0,
     5,
     "b???"},
    {"unless there is an added_tokens_decoder",
     R"({"bos_token": "<s>", "added_tokens_decoder": {}})",
     R"({"eos_token": "<n>"})",
     "",
     5,
     {0, 3, 2, 2, 2, 1, 2, 2, 2, 4},
     4,
     {},
     "a ???b???"},
    {"in the order of the keys, whichever file has them",
     R"({"pad_token": "<n>"})",
     R"({"pad_token": "<n>", "eos_token": "<p>"})",
     "",
     7,
     {0, 3, 6, 1, 5, 4},
     4,
     5,
     "a b"},
    {"by two names, with the last one's flags",
     R"({"pad_token": {"content": "<n>", "lstrip": true},
         "eos_token": "<n>"})",
     "",
     "",
     6,
     {0, 5, 1, 2, 2, 2, 4},
     4,
     5,
     "ab???"},
    {"by a name and in a list, with the list's flags",
     R"({"eos_token": {"content": "<n>", "lstrip": true},
         "extra_special_tokens": ["<n>"]})",
     "",
     "",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     4,
     5,
     "a b???"},
    {"by names in extra_special_tokens",
     R"({"extra_special_tokens": {"image_token": "<n>", "x": "<p>"},
         "additional_special_tokens": ["b"]})",
     "",
     "",
     7,
     {0, 3, 5, 1, 6, 4},
     4,
     {},
     "a "},
    {"in a list of tokenizer_config.json before one of the map",
     R"({"additional_special_tokens": ["<n>"]})",
     R"({"additional_special_tokens": ["<p>"]})",
     "",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a b???"},
    {"added_tokens.json is read",
     R"({"eos_token": "<n>"})",
     "",
     R"({"<p>": 6, "<n>": 5})",
     7,
     {0, 3, 5, 1, 6, 4},
     4,
     5,
     "a b<p>"},
    {"and gives way at an id of tokenizer.json",
     "",
     "",
     R"({"<p>": 4, "<n>": 9})",
     6,
     {0, 3, 5, 1, 2, 2, 2, 4},
     4,
     {},
     "a <n>b???"},
};

class TokensBesideTest : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) {
    std::filesystem::remove(folder_.path() / name);
    if (!text.empty())
      write_text_file(folder_.path() / name, text);
  }

  TemporaryFolder folder_;
};

TEST_F(TokensBesideTest, AreAddedAsTransformersAddsThem) {
  write("tokenizer.json", kBesideTokenizer);
  for (const BesideCase& each : kBesideCases) {
    SCOPED_TRACE(each.name);
    write("tokenizer_config.json", each.config);
    write("special_tokens_map.json", each.map);
    write("added_tokens.json", each.added);
    const auto tokenizer = load_tokenizer(folder_.path().string());
    EXPECT_EQ(tokenizer->vocab_size(), each.vocab_size);
    EXPECT_EQ(tokenizer->encode("a <n>b<p><s>"), each.ids);
    EXPECT_EQ(tokenizer->bos_id(), each.bos);
    EXPECT_EQ(tokenizer->eos_id(), each.eos);
    EXPECT_EQ(
        tokenizer->decode(each.ids, {.skip_special_tokens = true}), each.text);
  }
}

TEST_F(TokensBesideTest, AnIdThatIsNoneIsNamed) {
  write("tokenizer.json", kBesideTokenizer);
  write(
      "tokenizer_config.json",
      R"({"added_tokens_decoder": {"x": {"content": "<n>"}}})");
  EXPECT_THAT(
      [&] { load_tokenizer(folder_.path().string()); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("tokenizer_config.json:1:26"),
          HasSubstr("\"x\" is not a token's id"))));
}

}  // namespace
}  // namespace brigade
