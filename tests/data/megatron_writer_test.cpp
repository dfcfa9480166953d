#include "brigade/data/megatron_writer.h"

#include <gmock/gmock.h>

#include <random>

#include "brigade/data/token_dataset.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MegatronWriterTest : public DataTest {
 protected:
  void write_documents(
      const std::vector<std::vector<int32_t>>& documents,
      const MegatronWriterOptions& options) {
    MegatronWriter writer(folder_ / "x", options);
    for (const auto& document : documents) {
      std::vector<std::byte> bytes;
      append_tokens(options.type, document, bytes);
      writer.append(bytes);
      writer.end_document();
    }
    writer.commit();
  }
};

TEST_F(MegatronWriterTest, WritesMegatronsOwnBytes) {
  write_documents({{1, 2, 3}, {4, 5}}, {.type = TokenType::kU16});
  EXPECT_EQ(read_bytes(folder_ / "x.idx"), golden_index());
  EXPECT_EQ(read_bytes(folder_ / "x.bin"), golden_tokens());
  EXPECT_THAT(files(), ElementsAre("x.bin", "x.idx"));
}

TEST_F(MegatronWriterTest, WritesInt32ForALargeVocabulary) {
  EXPECT_EQ(megatron_token_type(65499), TokenType::kU16);
  EXPECT_EQ(megatron_token_type(65500), TokenType::kI32);
  write_documents({{70000, 1}}, {.type = TokenType::kI32});
  EXPECT_EQ(
      read_bytes(folder_ / "x.idx"),
      std::string("MMIDIDX\0\0", 9) + le_bytes<uint64_t>({1}) + "\x04" +
          le_bytes<uint64_t>({1, 2}) + le_bytes<int32_t>({2}) +
          le_bytes<int64_t>({0}) + le_bytes<int64_t>({0, 1}));
  EXPECT_EQ(read_bytes(folder_ / "x.bin"), le_bytes<int32_t>({70000, 1}));
}

TEST_F(MegatronWriterTest, ALongDocumentBecomesSeveralSequences) {
  write_documents(
      {{1, 2, 3, 4, 5, 6, 7}, {8, 9, 10}, {}, {11}},
      {.type = TokenType::kU16, .max_sequence_tokens = 3});
  // Sequences of 3, 3, 1 / 3 / 0 / 1.
  EXPECT_EQ(
      read_bytes(folder_ / "x.idx"),
      std::string("MMIDIDX\0\0", 9) + le_bytes<uint64_t>({1}) + "\x08" +
          le_bytes<uint64_t>({6, 5}) + le_bytes<int32_t>({3, 3, 1, 3, 0, 1}) +
          le_bytes<int64_t>({0, 6, 12, 14, 20, 20}) +
          le_bytes<int64_t>({0, 3, 4, 5, 6}));
  const auto dataset = TokenDataset::open(folder_ / "x");
  EXPECT_EQ(dataset.documents().size(), 4U);
  EXPECT_EQ(dataset.documents().begin(1), 7U);
}

TEST_F(MegatronWriterTest, WrittenDocumentsReadBackTokenForToken) {
  // More documents than one block of lengths, some of them empty.
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> documents(70000);
  std::vector<int64_t> expected;
  std::vector<uint64_t> begins;
  for (auto& document : documents) {
    begins.push_back(expected.size());
    document.resize(random() % 4);
    for (int32_t& token : document) {
      token = static_cast<int32_t>(random() % 65499);
      expected.push_back(token);
    }
  }
  write_documents(documents, {.type = TokenType::kU16});
  const auto dataset = TokenDataset::open(folder_ / "x");
  ASSERT_EQ(dataset.documents().size(), documents.size());
  for (size_t d = 0; d < begins.size(); ++d)
    ASSERT_EQ(dataset.documents().begin(d), begins[d]);
  std::vector<int64_t> tokens(dataset.num_tokens());
  dataset.read(0, tokens);
  EXPECT_EQ(tokens, expected);
}

TEST_F(MegatronWriterTest, WithoutCommitNothingIsLeft) {
  {
    MegatronWriter writer(folder_ / "x", {});
    const std::vector<std::byte> tokens(5 << 20);
    writer.append(tokens);
    writer.end_document();
  }
  EXPECT_THAT(files(), IsEmpty());
}

}  // namespace
}  // namespace brigade
