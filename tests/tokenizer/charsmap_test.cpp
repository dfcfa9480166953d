// SentencePiece's character map: what it replaces, and that a damaged one is
// refused rather than followed out of its bounds.
#include "brigade/tokenizer/charsmap.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/base64.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The map of goldens/make_tokenizers.py.
std::string golden_charsmap() {
  const fs::path file =
      fs::path(BRIGADE_SOURCE_DIR) / "tests/tokenizer/goldens/xlmr_like.json";
  const auto json = nlohmann::json::parse(read_text_file(file));
  return decode_base64(json.at("/normalizer/precompiled_charsmap"_json_pointer)
                           .get<std::string>())
      .value();
}

void set_u32(std::string& blob, size_t at, uint32_t number) {
  for (size_t i = 0; i < 4; ++i)
    blob[at + i] = static_cast<char>(number >> (8 * i) & 255);
}

std::string charsmap_error(const std::string& blob) {
  const JsonDocument document("{}", {"tokenizer", "FILE"});
  return message_of<DataError>([&] { Charsmap(blob, document.root()); });
}

TEST(Charsmap, ReplacesByTheShortestKeyThatTheTextBeginsWith) {
  const JsonDocument document("{}", {"tokenizer", "FILE"});
  const Charsmap map(golden_charsmap(), document.root());
  EXPECT_EQ(map.find("\uFF21"), "A");
  EXPECT_EQ(map.find("\uFB01"), "fi");
  EXPECT_EQ(map.find("e\u0301"), "é");
  EXPECT_EQ(map.find("e\u0301xyz"), "é");
  EXPECT_EQ(map.find("\u200B"), " ");
  EXPECT_EQ(map.find("\x01"), "");
  EXPECT_EQ(map.find("e"), std::nullopt);
  EXPECT_EQ(map.find(""), std::nullopt);
  EXPECT_EQ(map.find(std::string_view("\0", 1)), std::nullopt);
}

TEST(Charsmap, SizesAreChecked) {
  const std::string good = golden_charsmap();
  EXPECT_EQ(charsmap_error(good), "");
  EXPECT_NE(
      charsmap_error("abc").find("has 3 bytes and says that 0 of them"),
      std::string::npos);
  for (const uint32_t size : {uint32_t{0}, uint32_t{6}, UINT32_MAX - 3}) {
    std::string bad = good;
    set_u32(bad, 0, size);
    EXPECT_NE(
        charsmap_error(bad).find(fmt::format("says that {} of them", size)),
        std::string::npos)
        << charsmap_error(bad);
  }
  std::string bad = good;
  bad.back() = '\xFF';
  EXPECT_NE(charsmap_error(bad).find("not UTF-8"), std::string::npos);
  // The root's children beyond the end.
  bad = good;
  set_u32(bad, 4, 0x3FFFFF << 10);
  EXPECT_NE(
      charsmap_error(bad).find("unit 0 of the character map's trie"),
      std::string::npos)
      << charsmap_error(bad);
}

// Whatever loads can be searched. (Under ASan a step out of bounds shows.)
TEST(Charsmap, AChangedBitIsRefusedOrHarmless) {
  const std::string good = golden_charsmap();
  const JsonDocument document("{}", {"tokenizer", "FILE"});
  size_t refused = 0;
  for (size_t at = 0; at < good.size(); at += 7) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 1 << at % 8);
    try {
      const Charsmap map(changed, document.root());
      for (char32_t c = 1; c < 0x10000; c = c * 9 / 8 + 1) {
        if (c >= 0xD800 && c < 0xE000)
          continue;
        std::string text;
        append_utf8(text, c);
        append_utf8(text, 0x301);
        const auto replacement = map.find(text);
        EXPECT_TRUE(
            !replacement ||
            valid_utf8_prefix(*replacement) == replacement->size());
      }
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0U);
}

TEST(Base64, IsDecodedStrictly) {
  EXPECT_EQ(decode_base64(""), "");
  EXPECT_EQ(decode_base64("Zg=="), "f");
  EXPECT_EQ(decode_base64("Zm8="), "fo");
  EXPECT_EQ(decode_base64("Zm9v"), "foo");
  EXPECT_EQ(decode_base64("+/+/"), "\xFB\xFF\xBF");
  for (const char* bad :
       {"Z", "Zg=", "Zg", "Z===", "=m9v", "Zm\nv", " Zm9", "Zm9vYg=A"})
    EXPECT_EQ(decode_base64(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace brigade
