#include "brigade/tokenizer/sentencepiece_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/tokenizer_json.h"
#include "brigade/tokenizer/training.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Ids = std::vector<int32_t>;

std::string random_words(uint32_t seed, int words) {
  static const char* const kWords[] = {"the",    "ring", "bucket", "gradient",
                                       "über",   "日本", "naïve",  "2026",
                                       "a",      "of",   "passes", "hand",
                                       "aaaa",   "====", "  ",     "\n",
                                       "\u2581", "\t",   "😀",      "abab"};
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += kWords[random() % std::size(kWords)];
    if (random() % 3 != 0)
      text += ' ';
  }
  return text;
}

class SentencePieceJsonTest : public ::testing::Test {
 protected:
  SentencePieceJsonTest() {
    bool given = false;
    train_sentencepiece(
        [&](std::string& text) {
          text = random_words(1, 6000);
          return !std::exchange(given, true);
        },
        folder_ / "tokenizer.model",
        {.vocab_size = 400});
  }

  void write(const char* name, const nlohmann::json& json) {
    write_text_file(folder_ / name, json.dump());
  }

  const TemporaryFolder folder_;
};

TEST_F(SentencePieceJsonTest, TheConvertedModelGivesTheLibrarysTokens) {
  const auto library = load_tokenizer((folder_ / "tokenizer.model").string());
  const auto json = convert_sentencepiece(folder_ / "tokenizer.model");
  ASSERT_TRUE(json);
  const HuggingFaceTokenizer own(*json, "FILE");
  EXPECT_EQ(own.vocab_size(), library->vocab_size());
  EXPECT_EQ(own.bos_id(), library->bos_id());
  EXPECT_EQ(own.eos_id(), library->eos_id());
  for (uint32_t seed = 2; seed < 300; ++seed) {
    const std::string text = random_words(seed, 1 + seed % 40);
    for (const auto special :
         {SpecialTokens::kNone, SpecialTokens::kTemplate}) {
      const Ids ids = library->encode(text, {special});
      ASSERT_EQ(own.encode(text, {special}), ids) << text;
      ASSERT_EQ(
          own.decode(ids, {.skip_special_tokens = true}),
          library->decode(ids, {.skip_special_tokens = true}))
          << text;
    }
  }
  for (const char* text : {"", " ", "  leading", "x", "\n", "trailing  "})
    EXPECT_EQ(own.encode(text), library->encode(text)) << text;
}

std::string model_field(const std::string& tag, const std::string& bytes) {
  return tag + std::string(1, static_cast<char>(bytes.size())) + bytes;
}

// A piece behind those of a .model: a message more of the same field.
void append_piece(
    const std::filesystem::path& path,
    const std::string& text,
    float score,
    SentencePieceModel::PieceType type =
        SentencePieceModel::PieceType::kNormal) {
  std::string piece = model_field("\x0A", text) + "\x15";
  piece.append(reinterpret_cast<const char*>(&score), sizeof score);
  piece += {'\x18', static_cast<char>(type)};
  write_text_file(path, read_text_file(path) + model_field("\x0A", piece));
}

// Llama 2's runs of spaces are such pieces.
TEST_F(SentencePieceJsonTest, PiecesOfOneScoreAreMergedFromTheLeft) {
  const auto path = folder_ / "tokenizer.model";
  for (const size_t length : {1, 2, 4, 5, 6, 3, 7})
    append_piece(path, std::string(length, '-'), -1e9F);
  const auto library = load_tokenizer(path.string());
  const auto json = convert_sentencepiece(path);
  ASSERT_TRUE(json);
  const HuggingFaceTokenizer own(*json, "FILE");
  for (size_t length = 1; length < 40; ++length) {
    const std::string text = "the" + std::string(length, '-') + "ring " +
                             std::string(length / 2, '-') + "\n";
    ASSERT_EQ(own.encode(text), library->encode(text)) << length;
  }
}

TEST_F(SentencePieceJsonTest, FilesBesideAddTheirTokens) {
  write("added_tokens.json", {{"<|im_start|>", 400}, {"<|im_end|>", 401}});
  write(
      "tokenizer_config.json",
      {{"bos_token", "<s>"},
       {"eos_token", "<|im_end|>"},
       {"added_tokens_decoder",
        {{"1", {{"content", "<s>"}, {"special", true}}},
         {"400", {{"content", "<|im_start|>"}, {"special", true}}},
         {"401", {{"content", "<|im_end|>"}, {"special", true}}}}}});
  const auto tokenizer = load_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), 402);
  EXPECT_EQ(tokenizer->eos_id(), 401);
  const Ids ids = tokenizer->encode(
      "the<|im_start|>ring", {.special_tokens = SpecialTokens::kTemplate});
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 400), 1);
  EXPECT_THAT(tokenizer->encode("<|im_end|>"), ElementsAre(401));
  write("tokenizer_config.json", {{"add_bos_token", false}});
  EXPECT_THAT(
      load_tokenizer(folder_.path().string())
          ->encode("<|im_end|>", {.special_tokens = SpecialTokens::kTemplate}),
      ElementsAre(401));
}

struct ModelCase {
  const char* name;
  const char* config;  // tokenizer_config.json
  const char* map;     // special_tokens_map.json; "": none
  const char* added;   // added_tokens.json
  int64_t vocab_size;
  std::optional<int32_t> bos;
  const char* eos;  // "": none
  Ids front;        // what is added to a text
  Ids back;
};

// transformers 5.23's LlamaTokenizer says the same of the same folders, but
// that it adds bos only where "add_bos_token" is true.
const std::vector<ModelCase> kModelCases = {
    {"nothing", "{}", "", "", 400, 1, "</s>", {1}, {}},
    {"no bos", R"({"bos_token": null})", "", "", 400, {}, "</s>", {}, {}},
    {"not added",
     R"({"add_bos_token": false})",
     "",
     "",
     400,
     1,
     "</s>",
     {},
     {}},
    {"eos", R"({"add_eos_token": true})", "", "", 400, 1, "</s>", {1}, {2}},
    {"no eos",
     R"({"add_eos_token": true, "eos_token": null})",
     "",
     "",
     400,
     1,
     "",
     {1},
     {}},
    {"a symbol", R"({"eos_token": "<unk>"})", "", "", 400, 1, "<unk>", {1}, {}},
    {"a piece", R"({"eos_token": "a"})", "", "", 400, 1, "a", {1}, {}},
    {"a new token",
     R"({"eos_token": "<|im_end|>", "add_eos_token": true})",
     "",
     "",
     401,
     1,
     "<|im_end|>",
     {1},
     {400}},
    {"by a map",
     R"({"pad_token": "<pad>"})",
     R"({"eos_token": "<|im_end|>"})",
     R"({"<|im_end|>": 400})",
     402,
     1,
     "<|im_end|>",
     {1},
     {}},
    {"at an id of the model, and behind a gap",
     "{}",
     "",
     R"({"<|im_end|>": 1, "<n>": 410})",
     402,
     1,
     "</s>",
     {1},
     {}},
};

TEST_F(SentencePieceJsonTest, FilesBesideNameAndAddAsInTransformers) {
  const auto path = folder_ / "tokenizer.model";
  const EncodeOptions with{.special_tokens = SpecialTokens::kTemplate};
  for (const ModelCase& each : kModelCases) {
    SCOPED_TRACE(each.name);
    write_text_file(folder_ / "tokenizer_config.json", each.config);
    const std::string map = each.map;
    const std::string added = each.added;
    write_text_file(
        folder_ / "special_tokens_map.json", map.empty() ? "{}" : map);
    write_text_file(
        folder_ / "added_tokens.json", added.empty() ? "{}" : added);
    const auto tokenizer = load_tokenizer(path.string());
    EXPECT_EQ(tokenizer->vocab_size(), each.vocab_size);
    EXPECT_EQ(tokenizer->bos_id(), each.bos);
    EXPECT_EQ(tokenizer->eos_id(), tokenizer->token_id(each.eos));
    Ids around = each.front;
    for (const int32_t id : tokenizer->encode("the ring"))
      around.push_back(id);
    around.insert(around.end(), each.back.begin(), each.back.end());
    EXPECT_EQ(tokenizer->encode("the ring", with), around);
    const auto converted = convert_sentencepiece(path);
    ASSERT_TRUE(converted);
    const HuggingFaceTokenizer exported(*converted, "FILE");
    EXPECT_EQ(exported.vocab_size(), each.vocab_size);
    EXPECT_EQ(exported.encode("the ring", with), around);
  }
}

TEST_F(SentencePieceJsonTest, NamesThatNoFileGivesAreTheModels) {
  const auto path = folder_ / "tokenizer.model";
  append_piece(path, "<bos>", 0, SentencePieceModel::PieceType::kControl);
  const std::string trainer = model_field("\xF2\x02", "<bos>");  // bos_piece
  write_text_file(path, read_text_file(path) + model_field("\x12", trainer));
  EXPECT_EQ(load_tokenizer(path.string())->bos_id(), 400);
  write("added_tokens.json", {{"<n>", 401}});
  const auto tokenizer = load_tokenizer(path.string());
  EXPECT_EQ(tokenizer->bos_id(), 400);
  EXPECT_THAT(
      tokenizer->encode("<n>", {.special_tokens = SpecialTokens::kTemplate}),
      ElementsAre(400, 401));
}

TEST_F(SentencePieceJsonTest, TheLibraryFollowsNamesAndFlagsToo) {
  const auto path = folder_ / "tokenizer.model";
  append_piece(path, "<sep>", 0, SentencePieceModel::PieceType::kUserDefined);
  write(
      "tokenizer_config.json",
      {{"eos_token", "a"},
       {"sep_token", "<sep>"},
       {"mask_token", "<mask>"},
       {"add_bos_token", false},
       {"add_eos_token", true}});
  ASSERT_FALSE(convert_sentencepiece(path));
  const auto tokenizer = load_tokenizer(path.string());
  const int32_t end = tokenizer->token_id("a").value();
  EXPECT_EQ(tokenizer->eos_id(), end);
  EXPECT_THAT(
      tokenizer->encode("", {.special_tokens = SpecialTokens::kTemplate}),
      ElementsAre(end));
  write("added_tokens.json", {{"<n>", 401}});
  EXPECT_THAT(
      [&] { load_tokenizer(path.string()); },
      ThrowsMessage<DataError>(HasSubstr(
          "add \"<n>\" to the model, which cannot be done here: \"<sep>\" is a "
          "symbol of the user's")));
}

TEST_F(SentencePieceJsonTest, SpacesBesideAddedTokensAreTransformers) {
  write("added_tokens.json", {{"<x>", 400}});
  const auto spelled = [&](const nlohmann::json& config) {
    write("tokenizer_config.json", config);
    const auto tokenizer = load_tokenizer(folder_.path().string());
    std::string all;
    for (const char* text : {"a<x>ring", "<x> ring", " ring", "</s><s>ring"}) {
      for (const int32_t id : tokenizer->encode(text))
        all += *tokenizer->token_text(id);
      all += '\n';
    }
    return all;
  };
  const std::string first =
      "\u2581a<x>ring\n<x>\u2581ring\n\u2581ring\n</s><s>ring\n";
  EXPECT_EQ(spelled(nlohmann::json::object()), first);
  EXPECT_EQ(spelled({{"legacy", false}}), first);
  EXPECT_EQ(
      spelled({{"legacy", true}}),
      "\u2581a<x>\u2581ring\n<x>\u2581ring\n\u2581ring\n"
      "</s><s>\u2581ring\n");
}

TEST_F(SentencePieceJsonTest, AModelThatCannotBeConvertedIsRefusedWithReason) {
  const SentencePieceModel bpe{
      .pieces = {{.text = "a"}},
      .algorithm = SentencePieceModel::Algorithm::kBpe};
  EXPECT_EQ(
      reason_not_to_convert({.pieces = {{.text = "a"}}}),
      "it is not of the kind BPE");
  EXPECT_EQ(reason_not_to_convert(bpe), "it normalises the text");
}

TEST(SentencePieceModel, DamagedBytesAreRefused) {
  for (const std::string bytes :
       {"\x0A",
        "\x0A\x05"
        "ab",
        "\x0B",
        "\xFF"})
    EXPECT_THROW(parse_sentencepiece_model(bytes, "FILE"), DataError);
}

}  // namespace
}  // namespace brigade
