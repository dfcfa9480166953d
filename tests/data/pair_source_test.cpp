#include "brigade/data/pair_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "brigade/data/dataset_info.h"
#include "brigade/data/megatron_writer.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/training_data.h"
#include "data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PairSourceTest : public DataTest {
 protected:
  // Two pairs: tokens 10 to 21 in the documents [10, 11, 12], [13, 14], [15,
  // 16, 17, 18] and [19, 20, 21]. The last token of each document counts, and
  // 17.
  PairSourceTest() {
    MegatronWriter writer(folder_ / "pairs", {.type = TokenType::kU16});
    int32_t token = 10;
    for (const size_t size : {3, 2, 4, 3}) {
      std::vector<int32_t> document(size);
      std::iota(document.begin(), document.end(), token);
      token += static_cast<int32_t>(size);
      std::vector<std::byte> bytes;
      append_tokens(TokenType::kU16, document, bytes);
      writer.append(bytes);
      writer.end_document();
    }
    writer.commit();
    // Bits 2, 4, 7, 8, 11.
    write_mask({0b1001'0100, 0b1001}, 5);
  }
  void write_mask(const std::vector<uint8_t>& bits, uint64_t counting) const {
    write(
        "pairs.mask",
        "BRGDMASK" + le_bytes<uint32_t>({1, 0}) +
            le_bytes<uint64_t>({12, counting}) + le_bytes(bits));
  }
  std::shared_ptr<PairDataset> pairs() const {
    auto pairs = std::make_shared<PairDataset>();
    pairs->dataset = std::make_shared<const TokenDataset>(
        TokenDataset::open(folder_ / "pairs"));
    return pairs;
  }
  std::string complaint(const PairDataset& pairs, int64_t seq_length) const {
    return message_of<DataError>([&] { pairs.require_fits(seq_length); });
  }

  static constexpr int64_t kNone = kNoTarget;
};

TEST_F(PairSourceTest, SamplesAreThePairsAnswersInTurnPaddedToTheSequence) {
  const auto dataset = pairs();
  dataset->reference = {-1, -2, -3, -4};
  dataset->require_fits(4);
  const PairSource source(
      dataset, 4, {.windows = {0, 2}, .seed = 0, .shuffle = false});
  EXPECT_EQ(source.samples_per_epoch(), 4U);
  Window window;
  source.read(0, window);
  EXPECT_THAT(window.inputs, ElementsAre(10, 11, 0, 0));
  EXPECT_THAT(window.targets, ElementsAre(kNone, 12, kNone, kNone));
  EXPECT_EQ(window.reference, -1.0);
  source.read(1, window);
  EXPECT_THAT(window.inputs, ElementsAre(13, 0, 0, 0));
  EXPECT_THAT(window.targets, ElementsAre(14, kNone, kNone, kNone));
  EXPECT_EQ(window.reference, -2.0);
  source.read(6, window);  // in the second epoch
  EXPECT_THAT(window.inputs, ElementsAre(15, 16, 17, 0));
  EXPECT_THAT(window.targets, ElementsAre(kNone, 17, 18, kNone));
  EXPECT_EQ(window.reference, -3.0);
}

TEST_F(PairSourceTest, AnswersStayTogetherWhereOrderIsShuffled) {
  const PairSource source(
      pairs(), 4, {.windows = {0, 2}, .seed = 3, .shuffle = true});
  for (uint64_t sample = 0; sample < 20; sample += 2) {
    Window chosen;
    Window rejected;
    source.read(sample, chosen);
    source.read(sample + 1, rejected);
    EXPECT_EQ(rejected.inputs[0], chosen.inputs[0] == 10 ? 13 : 19);
    EXPECT_FALSE(chosen.reference.has_value());
  }
}

TEST_F(PairSourceTest, AnswersThatDoNotFitAreNamed) {
  EXPECT_THAT(
      complaint(*pairs(), 2),
      AllOf(
          HasSubstr("chosen answer of pair 1 has 4 tokens"),
          HasSubstr("--max-tokens 3")));
  write_mask({0b1000'0100, 0b1001}, 4);
  EXPECT_THAT(
      complaint(*pairs(), 4),
      HasSubstr("rejected answer of pair 0 has no token that counts"));
}

class ReferenceTest : public PairSourceTest {
 protected:
  std::string complaint_about(const std::string& json) const {
    write("pairs.reference.json", json);
    return message_of<DataError>([&] { read_reference(*pairs()->dataset); });
  }
};

TEST_F(ReferenceTest, IsReadAsItWasWritten) {
  const auto dataset = pairs()->dataset;
  EXPECT_THAT(
      message_of<ConfigError>([&] { read_reference(*dataset); }),
      HasSubstr("--write-reference"));
  write_reference(*dataset, {"models/base", {-0.1, -2, -1e-3, -400.25}});
  const ReferenceLogProbs found = read_reference(*dataset);
  EXPECT_EQ(found.model, "models/base");
  EXPECT_THAT(found.log_probs, ElementsAre(-0.1, -2, -1e-3, -400.25));
}

TEST_F(ReferenceTest, OneOfAnotherDatasetIsRefused) {
  const std::string begin =
      R"({"format": "brigade-reference", "version": 1, "model": "m", )";
  EXPECT_THAT(
      complaint_about(begin + R"("num_tokens": 11, "log_probs": [1,2,3,4]})"),
      HasSubstr("11, but the dataset beside it has 12"));
  EXPECT_THAT(
      complaint_about(begin + R"("num_tokens": 12, "log_probs": [1,2,3]})"),
      HasSubstr("3, but the dataset beside it has 4"));
  EXPECT_THAT(
      complaint_about(
          begin + R"("num_tokens": 12, "log_probs": [1,2,null,4]})"),
      HasSubstr("/log_probs/2"));
  EXPECT_THAT(
      complaint_about(R"({"format": "x"})"), HasSubstr("brigade-reference"));
}

TEST_F(PairSourceTest, TheDatasetsContentMustFitTheLoss) {
  const auto open = [&](TrainingDataOptions::Samples samples) {
    TrainingDataOptions options;
    options.parts = {{.path = (folder_ / "pairs").string()}};
    options.seq_length = 4;
    options.vocab_size = 32;
    options.samples = samples;
    return message_of<ConfigError>([&] { open_training_data(options); });
  };
  DatasetInfo info{
      .vocab_size = 32,
      .tokenizer = "bytes",
      .num_tokens = 12,
      .num_documents = 4,
      .num_pairs = 2,
      .token_type = "uint16"};
  write_dataset_info(folder_ / "pairs", info);
  EXPECT_EQ(read_dataset_info(folder_ / "pairs"), info);
  using Samples = TrainingDataOptions::Samples;
  EXPECT_THAT(open(Samples::kWindows), HasSubstr("holds 2 pairs"));
  EXPECT_THAT(
      open(Samples::kPairsWithReference), HasSubstr("--write-reference"));
  info.num_pairs = 0;
  write_dataset_info(folder_ / "pairs", info);
  EXPECT_THAT(open(Samples::kPairs), HasSubstr("holds none"));
}

}  // namespace
}  // namespace brigade
