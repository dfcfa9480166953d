#include "brigade/data/loss_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "brigade/data/training_data.h"
#include "data_test_files.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LossMaskTest : public DataTest {
 protected:
  // The bytes that docs/files.md describes.
  static std::string bytes_of(
      uint64_t tokens,
      uint64_t counting,
      const std::vector<uint8_t>& bits) {
    return "BRGDMASK" + le_bytes<uint32_t>({1, 0}) +
           le_bytes<uint64_t>({tokens, counting}) + le_bytes(bits);
  }
  // 5 documents of 2 tokens, 100 to 109; those in 0b10'0100'1010 count.
  std::string dataset() const {
    std::vector<uint16_t> tokens(10);
    std::iota(tokens.begin(), tokens.end(), 100);
    write("a.ds.index", le_bytes<uint64_t>({2, 4, 6, 8, 10}));
    write("a.mask", bytes_of(10, 4, {0b0100'1010, 0b10}));
    return write("a.ds", le_bytes(tokens));
  }
  std::string complaint(const std::string& mask) const {
    write("bad.mask", mask);
    return message_of<DataError>(
        [&] { LossMask::open(folder_ / "bad.mask", 10); });
  }
};

TEST_F(LossMaskTest, IsWrittenAsDocumentedAndReadAgain) {
  LossMaskWriter writer;
  for (const int counts : {0, 1, 0, 1, 0, 0, 1, 0, 0, 1})
    writer.append(counts != 0);
  writer.commit(folder_ / "b.mask");
  EXPECT_EQ(
      read_bytes(folder_ / "b.mask"), bytes_of(10, 4, {0b0100'1010, 0b10}));
  const auto mask = LossMask::open(folder_ / "b.mask", 10);
  ASSERT_TRUE(mask.has_value());
  EXPECT_EQ(mask->counting_tokens(), 4U);
  EXPECT_FALSE(mask->counts(0));
  EXPECT_TRUE(mask->counts(6));
  EXPECT_TRUE(mask->counts(9));
  EXPECT_FALSE(LossMask::open(folder_ / "none.mask", 10).has_value());
}

TEST_F(LossMaskTest, TargetsThatDoNotCountHaveNoLoss) {
  const auto data = open_training_data(
      {.parts = {{dataset()}}, .seq_length = 4, .vocab_size = 1000});
  EXPECT_EQ(data.counting_tokens, 4U);
  Window window;
  data.training->read(0, window);
  EXPECT_THAT(window.inputs, ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(window.targets, ElementsAre(101, kNoTarget, 103, kNoTarget));
  data.training->read(1, window);
  EXPECT_THAT(window.inputs, ElementsAre(104, 105, 106, 107));
  EXPECT_THAT(
      window.targets, ElementsAre(kNoTarget, 106, kNoTarget, kNoTarget));
}

TEST_F(LossMaskTest, MovesWithTheDocumentsOfAnEpoch) {
  const auto data = open_training_data(
      {.parts = {{dataset()}},
       .seq_length = 4,
       .vocab_size = 1000,
       .seed = 3,
       .dataset = {.document_epochs = true}});
  Window window;
  for (uint64_t sample = 0; sample < 20; ++sample) {
    data.training->read(sample, window);
    for (size_t i = 0; i < 4; ++i) {
      const int64_t counting[] = {101, 103, 106, 109};
      const int64_t next = i < 3 ? window.inputs[i + 1] : window.targets[i];
      const bool counts =
          std::find(counting, counting + 4, next) != counting + 4;
      EXPECT_EQ(window.targets[i], counts ? next : kNoTarget);
    }
  }
}

TEST_F(LossMaskTest, DamageIsNamedWithItsOffset) {
  const std::vector<uint8_t> bits{0b0100'1010, 0b10};
  const std::string good = bytes_of(10, 4, bits);
  EXPECT_THAT(complaint(""), HasSubstr("bad.mask] at byte 0: the magic"));
  EXPECT_THAT(complaint("x" + good), HasSubstr("at byte 0: not 'BRGDMASK'"));
  std::string other = good;
  other[8] = 2;
  EXPECT_THAT(complaint(other), HasSubstr("at byte 8: version 2; this"));
  EXPECT_THAT(
      complaint(bytes_of(11, 4, bits)),
      HasSubstr("at byte 16: a mask of 11 tokens, but the dataset beside it "
                "has 10"));
  EXPECT_THAT(
      complaint(bytes_of(10, 5, bits)),
      HasSubstr("at byte 32: 4 bits are set, but 5 tokens should count"));
  EXPECT_THAT(
      complaint(bytes_of(10, 2, {0b0100'1010})),
      HasSubstr(
          "at byte 32: one bit per token takes 2 bytes, but only 1 are left"));
  EXPECT_THAT(complaint(good + "x"), HasSubstr("at byte 34: 1 bytes too many"));
}

}  // namespace
}  // namespace brigade
