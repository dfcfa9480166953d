// Patterns of tokenizer.json as Hugging Face's engine (Oniguruma) reads them:
// goldens/make_regexes.py wrote its results.
#include "brigade/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Strings = std::vector<std::string>;

// What Split with the behavior Isolated makes of the text.
Strings pieces(const Regex& regex, const std::string& text) {
  RegexScratch scratch;
  Strings found;
  size_t covered = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (end > begin)
      found.push_back(text.substr(begin, end - begin));
  };
  for_each_match(regex, text, scratch, [&](size_t begin, size_t end) {
    add(covered, begin);
    add(begin, end);
    covered = end;
  });
  add(covered, text.size());
  return found;
}

const nlohmann::json& goldens(const char* name) {
  static const nlohmann::json file = nlohmann::json::parse(read_text_file(
      std::filesystem::path(BRIGADE_SOURCE_DIR) /
      "tests/tokenizer/goldens/regexes.json"));
  return file.at(name);
}

void compare(const Regex& regex, const nlohmann::json& golden) {
  for (const auto& text : golden[1])
    EXPECT_EQ(pieces(regex, text[0].get<std::string>()), text[1].get<Strings>())
        << golden[0] << " on " << text[0];
}

TEST(RegexDialect, EveryPartOfOnigurumasSyntaxSplitsAsItsEngineDoes) {
  const JsonDocument nothing("{}", {"tokenizer", "FILE"});
  for (const auto& golden : goldens("chosen"))
    compare(Regex(golden[0].get<std::string>(), nothing.root()), golden);
}

TEST(RegexDialect, ARandomPatternIsRefusedOrSplitsAsOnigurumaDoes) {
  const JsonDocument nothing("{}", {"tokenizer", "FILE"});
  size_t refused = 0;
  for (const auto& golden : goldens("generated")) {
    try {
      compare(Regex(golden[0].get<std::string>(), nothing.root()), golden);
    } catch (const DataError& error) {
      ++refused;
      EXPECT_NE(
          std::string(error.what()).find("is not supported"), std::string::npos)
          << golden[0] << ": " << error.what();
    }
  }
  EXPECT_LT(10 * refused, goldens("generated").size());
}

TEST(RegexDialect, RefusesPatternsWithoutEqualByName) {
  const JsonDocument nothing("{}", {"tokenizer", "FILE"});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(?~ab)", "an absent operator"},
      {"(*FAIL)", "a callout (*...)"},
      {"(?{x})", "a callout (?{...})"},
      {"(?(1)a|b)", "a condition"},
      {"(?<n>a)\\g<n>", "\\g"},
      {"\\X", "\\X"},
      {"\\y", "\\y"},
      {"\\xE4", "a byte above 0x7F"},
      {"\\x{61 62}", "a list of characters"},
      {"(?W:\\w)", "the group option W"},
      {"(?<n>a)(?<n>b)", "two groups of the name n"},
      {"(?i)ss", "letters that fold to several"},
      {"(?i)\xC3\x9F", "letters that fold to several"},
      {"(?i)[\\p{Lu}]", "a property whose other case is not in it"},
      {"(?i)[a[b]]", "a set within a character class"},
      {"(?<=a{1,2})b", "a look-behind of variable length"},
      {"\\p{InBasicLatin}", "\\p{InBasicLatin}"},
      {"a\\M-a", "\\M"}};
  for (const auto& each : cases) {
    EXPECT_THAT(
        [&] { const Regex regex(each.first, nothing.root()); },
        ThrowsMessage<DataError>(
            AllOf(HasSubstr(each.second), HasSubstr("is not supported"))))
        << each.first;
  }
}

TEST(RegexDialect, FaultsAreNamed) {
  const JsonDocument nothing("{}", {"tokenizer", "FILE"});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a(b", "has a ( without )"},
      {"a)b", "has a ) without ("},
      {"*a", "has a * that repeats nothing"},
      {"^*", "repeats something that has no length"},
      {"[a", "a character class that is not closed"},
      {"[]", "an empty character class"},
      {"[b-a]", "a range that ends before it begins"},
      {"[\\w-z]", "a range that begins with a set"},
      {"[a-\\d]", "a range that ends with a set"},
      {"[[:foo:]]", "an unknown class [:foo:]"},
      {"(?<n>a)\\1", "by number though groups have names"},
      {"\\x{110000}", "above U+10FFFF"},
      {"a{100001}", "a number above 100000"},
      {"\\", "ends too early"}};
  for (const auto& each : cases) {
    EXPECT_THAT(
        [&] { const Regex regex(each.first, nothing.root()); },
        ThrowsMessage<DataError>(HasSubstr(each.second)))
        << each.first;
  }
}

}  // namespace
}  // namespace brigade
