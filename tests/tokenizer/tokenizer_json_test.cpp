// Tokens and texts against Hugging Face's engine: goldens/ holds its results,
// and the scripts that wrote them.
#include "brigade/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/files/file.h"
#include "brigade/tokenizer/streaming_decoder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const fs::path kGoldens =
    fs::path(BRIGADE_SOURCE_DIR) / "tests/tokenizer/goldens";
const fs::path kShared = fs::path(BRIGADE_SOURCE_DIR) / "../shared/data";
constexpr size_t kBlockTexts = 50;  // make_goldens.py: BLOCK_TEXTS

// The digest of make_goldens.py: FNV-1a over counts, ids and bytes.
class Digest {
 public:
  void ids(const Ids& ids) {
    u32(static_cast<uint32_t>(ids.size()));
    for (const int32_t id : ids)
      u32(static_cast<uint32_t>(id));
  }
  void text(const std::string& text) {
    u32(static_cast<uint32_t>(text.size()));
    for (const char c : text)
      byte(static_cast<unsigned char>(c));
  }
  std::string hex() const {
    char text[9];
    std::snprintf(text, sizeof(text), "%08x", hash_);
    return text;
  }

 private:
  uint32_t hash_ = 0x811c9dc5;
  void byte(uint32_t b) { hash_ = (hash_ ^ b) * 0x01000193; }
  void u32(uint32_t n) {
    for (int shift = 0; shift < 32; shift += 8)
      byte(n >> shift & 255);
  }
};

void add_text(
    Digest& digest,
    const Tokenizer& tokenizer,
    const std::string& text) {
  const Ids full =
      tokenizer.encode(text, {.special_tokens = SpecialTokens::kTemplate});
  digest.ids(tokenizer.encode(text));
  digest.ids(full);
  digest.text(tokenizer.decode(full));
  digest.text(tokenizer.decode(full, {.skip_special_tokens = true}));
}

std::string digest_of(const Tokenizer& tokenizer, const std::string& text) {
  Digest digest;
  add_text(digest, tokenizer, text);
  return digest.hex();
}

const nlohmann::json& goldens() {
  static const auto* const kJson = new nlohmann::json(
      nlohmann::json::parse(read_text_file(kGoldens / "goldens.json")));
  return *kJson;
}

const nlohmann::json& texts() {
  static const auto* const kJson = new nlohmann::json(
      nlohmann::json::parse(read_text_file(kGoldens / "texts.json")));
  return *kJson;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& [name, golden] : goldens().items())
    names.push_back(name);
  return names;
}

class TokenizerGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = goldens().at(GetParam());
    const bool shared = golden_.at("shared").get<bool>();
    const fs::path path =
        (shared ? kShared / "tokenizers" : kGoldens) / (GetParam() + ".json");
    if (shared && !fs::exists(path))
      GTEST_SKIP() << path << " is not here";
    tokenizer_ = load_tokenizer(path);
  }
  nlohmann::json golden_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, GivesTheEnginesTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), golden_.at("vocab_size").get<int64_t>());
  for (size_t i = 0; i < golden_.at("ids").size(); ++i) {
    const auto& text = texts().at("named")[i].get_ref<const std::string&>();
    EXPECT_EQ(
        tokenizer_->encode(text, {.special_tokens = SpecialTokens::kTemplate}),
        golden_.at("ids")[i].get<Ids>())
        << "text " << i << ": " << text;
  }
}

TEST_P(TokenizerGolden, GivesTheEnginesTokensAndTextForEveryNamedText) {
  for (size_t i = 0; i < texts().at("named").size(); ++i) {
    const auto& text = texts().at("named")[i].get_ref<const std::string&>();
    EXPECT_EQ(
        digest_of(*tokenizer_, text),
        golden_.at("named")[i].get_ref<const std::string&>())
        << "text " << i << ": " << text;
  }
}

TEST_P(TokenizerGolden, GivesTheEnginesTokensAndTextForRandomUnicode) {
  const auto& random = texts().at("random");
  ASSERT_EQ(random.size(), 10'000U);
  for (size_t begin = 0; begin < random.size(); begin += kBlockTexts) {
    Digest digest;
    for (size_t i = begin; i < begin + kBlockTexts; ++i)
      add_text(digest, *tokenizer_, random[i].get_ref<const std::string&>());
    EXPECT_EQ(
        digest.hex(),
        golden_.at("random")[begin / kBlockTexts].get_ref<const std::string&>())
        << "texts " << begin << " to " << begin + kBlockTexts - 1;
  }
}

TEST_P(TokenizerGolden, DecodesRandomTokensAsTheEngineDoes) {
  uint32_t state = 777;
  const auto random = [&](uint64_t n) {
    state = state * 1664525 + 1013904223;
    return static_cast<int32_t>(state * n >> 32);
  };
  std::vector<Ids> runs(400);
  for (Ids& run : runs) {
    run.resize(1 + random(12));
    for (int32_t& id : run)
      id = random(static_cast<uint64_t>(tokenizer_->vocab_size()));
  }
  Digest digest;
  for (const bool skip : {false, true}) {
    for (const Ids& run : runs)
      digest.text(tokenizer_->decode(run, {.skip_special_tokens = skip}));
  }
  EXPECT_EQ(digest.hex(), golden_.at("decoded").get<std::string>());
}

// Those of whole models, whose golden files hold it.
class LongEnglish : public TokenizerGolden {};

TEST_P(LongEnglish, GivesTheEnginesTokens) {
  const std::string text =
      read_text_file(kShared / "tinyshakespeare.txt").substr(0, 300'000);
  EXPECT_EQ(
      digest_of(*tokenizer_, text),
      golden_.at("shakespeare").get<std::string>());
}

TEST_P(TokenizerGolden, StreamsTheTextThatDecodingAtOnceGives) {
  for (const auto& text : texts().at("named")) {
    const Ids ids = tokenizer_->encode(text.get_ref<const std::string&>());
    StreamingDecoder stream(*tokenizer_, {});
    std::string streamed;
    for (const int32_t id : ids)
      streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), tokenizer_->decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerGolden,
    ::testing::ValuesIn(golden_names()),
    [](const auto& test) { return test.param; });

std::vector<std::string> whole_models() {
  std::vector<std::string> names;
  for (const std::string& name : golden_names()) {
    if (goldens().at(name).contains("shakespeare"))
      names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    LongEnglish,
    ::testing::ValuesIn(whole_models()),
    [](const auto& test) { return test.param; });

}  // namespace
}  // namespace brigade
