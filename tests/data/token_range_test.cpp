#include "brigade/data/token_range.h"

#include <gmock/gmock.h>

#include "brigade/data/dataset_info.h"
#include "brigade/data/training_data.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenRangeTest : public DataTest {
 protected:
  // nanotron's format: tokens without a header.
  template <class T>
  TokenDataset dataset(const std::vector<T>& tokens, int64_t vocab_size) const {
    write("a.ds.metadata", sizeof(T) == 2 ? "x|2\n1" : "x|4\n1");
    return TokenDataset::open(
        write("a.ds", le_bytes<T>(tokens)), {.vocab_size = vocab_size});
  }
};

TEST_F(TokenRangeTest, FindsTheLowestAndTheHighestId) {
  const auto small = find_token_range(dataset<uint16_t>({7, 3, 65535, 9}, 10));
  EXPECT_EQ(small.lowest, 3);
  EXPECT_EQ(small.highest, 65535);
  // More than one step of the scan, with the extremes in the last one.
  std::vector<uint32_t> many(9'000'000, 50);
  many[8'999'998] = 7;
  many[8'999'999] = 4'000'000'000;
  const auto large = find_token_range(dataset<uint32_t>(many, 10));
  EXPECT_EQ(large.lowest, 7);
  EXPECT_EQ(large.highest, 4'000'000'000);
}

TEST_F(TokenRangeTest, AnIdBeyondTheVocabularyIsFoundWhenTheDataIsOpened) {
  std::vector<uint16_t> tokens(5000, 1);
  tokens[4321] = 8;
  check_token_ids(dataset(tokens, 9), 9);
  EXPECT_THAT(
      message_of<DataError>([&] { check_token_ids(dataset(tokens, 8), 8); }),
      AllOf(
          HasSubstr("a.ds] at byte 8642: token id 8"),
          HasSubstr("vocabulary of 8")));
  // open_training_data() does so: no batch is read here.
  EXPECT_THAT(
      message_of<DataError>([&] {
        open_training_data(
            {.parts = {{folder_ / "a.ds"}}, .seq_length = 4, .vocab_size = 8});
      }),
      HasSubstr("a.ds] at byte 8642: token id 8"));
}

TEST_F(TokenRangeTest, ALargeFileIsScannedOncePerState) {
  std::vector<uint16_t> tokens(17'000'000, 5);
  int reports = 0;
  const TokenScanOptions options{
      .cache_dir = folder_ / "cache",
      .on_progress = [&](const TokenScanProgress&) { ++reports; }};
  const auto scan = [&] {
    reports = 0;
    const auto range = find_token_range(dataset(tokens, 10), options);
    EXPECT_EQ(range.lowest, 5);
    return range.highest;
  };
  EXPECT_EQ(scan(), 5);
  EXPECT_GT(reports, 1);
  const auto opened = TokenDataset::open(folder_ / "a.ds");
  reports = 0;
  EXPECT_EQ(find_token_range(opened, options).highest, 5);
  EXPECT_EQ(reports, 0);  // from the cache
  // Changed contents are scanned again, and so is a damaged entry.
  tokens[16'999'999] = 6;
  EXPECT_EQ(scan(), 6);
  EXPECT_GT(reports, 1);
  for (const auto& entry :
       fs::directory_iterator(folder_ / "cache/token_ranges"))
    std::ofstream(entry.path()) << "{";
  reports = 0;
  EXPECT_EQ(
      find_token_range(TokenDataset::open(folder_ / "a.ds"), options).highest,
      6);
  EXPECT_GT(reports, 1);
}

TEST_F(TokenRangeTest, ACacheThatCannotBeWrittenCostsAScanAndNoError) {
  write("file", "no folder");
  const std::vector<uint16_t> tokens(17'000'000, 5);
  EXPECT_EQ(
      find_token_range(dataset(tokens, 10), {.cache_dir = folder_ / "file"})
          .highest,
      5);
}

TEST_F(TokenRangeTest, ATokenizerThatIsNotTheDatasetsIsRefused) {
  write("p.tokenizer/tokenizer.json", "{\"a\": 1}");
  write("same/tokenizer.json", "{\"a\": 1}");
  write("other/tokenizer.json", "{\"a\": 2}");
  const DatasetInfo info{.tokenizer = folder_ / "p.tokenizer"};
  const fs::path prefix = folder_ / "p";
  require_tokenizer(info, folder_ / "same", prefix);
  require_tokenizer(info, folder_ / "same/tokenizer.json", prefix);
  require_tokenizer({.tokenizer = "bytes"}, "bytes", prefix);
  for (const std::string& spec :
       {(folder_ / "other").string(), std::string("bytes")})
    EXPECT_THAT(
        message_of<ConfigError>([&] { require_tokenizer(info, spec, prefix); }),
        AllOf(
            HasSubstr("/dataset/tokenizer = \"" + spec + "\""),
            HasSubstr("p' was prepared with")));
  EXPECT_THAT(
      message_of<ConfigError>([&] {
        require_tokenizer({.tokenizer = "bytes"}, folder_ / "same", prefix);
      }),
      HasSubstr("was prepared with 'bytes'"));
  // A dataset whose tokenizer is gone works with any.
  require_tokenizer({.tokenizer = folder_ / "gone"}, folder_ / "other", prefix);
}

}  // namespace
}  // namespace brigade
