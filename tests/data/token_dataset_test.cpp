#include "brigade/data/token_dataset.h"

#include <gmock/gmock.h>

#include "brigade/data/dataset_info.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenDatasetTest : public DataTest {
 protected:
  // The message with which the dataset is refused.
  std::string refusal(
      const std::filesystem::path& path,
      const TokenDatasetOptions& options = {}) const {
    return message_of<DataError>([&] { TokenDataset::open(path, options); });
  }
  std::string refused_megatron(
      const std::string& index,
      const std::string& tokens = golden_tokens()) const {
    write("x.bin", tokens);
    write("x.idx", index);
    return refusal(folder_ / "x");
  }
};

std::vector<int64_t> all_tokens(const TokenDataset& dataset) {
  std::vector<int64_t> tokens(dataset.num_tokens());
  dataset.read(0, tokens);
  return tokens;
}

std::vector<uint64_t> document_begins(const TokenDataset& dataset) {
  std::vector<uint64_t> begins;
  for (uint64_t d = 0; d <= dataset.documents().size(); ++d)
    begins.push_back(dataset.documents().begin(d));
  return begins;
}

// `text` with the bytes at `offset` replaced.
std::string patched(std::string text, size_t offset, std::string_view bytes) {
  return text.replace(offset, bytes.size(), bytes);
}

std::string npy(const std::string& header, const std::string& data) {
  const auto length = static_cast<uint16_t>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) + le_bytes<uint16_t>({length}) +
         header + data;
}

TEST_F(TokenDatasetTest, ReadsTheGoldenMegatronPairByAnyOfItsNames) {
  write("x.bin", golden_tokens());
  write("x.idx", golden_index());
  for (const char* name : {"x", "x.bin", "x.idx"}) {
    const auto dataset = TokenDataset::open(folder_ / name);
    EXPECT_STREQ(dataset.format(), "Megatron");
    EXPECT_EQ(dataset.token_type(), TokenType::kU16);
    EXPECT_THAT(all_tokens(dataset), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THAT(document_begins(dataset), ElementsAre(0, 3, 5));
  }
}

TEST_F(TokenDatasetTest, SurvivesBeingMoved) {
  write("x.bin", golden_tokens());
  write("x.idx", golden_index());
  auto first =
      std::make_unique<TokenDataset>(TokenDataset::open(folder_ / "x"));
  const TokenDataset second = std::move(*first);
  first.reset();
  EXPECT_THAT(all_tokens(second), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(second.documents().begin(1), 3U);
}

TEST_F(TokenDatasetTest, MegatronDocumentsMayBeEmptyOrOfSeveralSequences) {
  // Sequences of 2, 1, 2 tokens; documents: two sequences, none, one, none.
  write("x.bin", le_bytes<int32_t>({7, 8, 9, 10, 70000}));
  write(
      "x.idx",
      std::string("MMIDIDX\0\0", 9) + le_bytes<uint64_t>({1}) + "\x04" +
          le_bytes<uint64_t>({3, 5}) + le_bytes<int32_t>({2, 1, 2}) +
          le_bytes<int64_t>({0, 8, 12}) + le_bytes<int64_t>({0, 2, 2, 3, 3}));
  const auto dataset = TokenDataset::open(folder_ / "x");
  EXPECT_THAT(all_tokens(dataset), ElementsAre(7, 8, 9, 10, 70000));
  EXPECT_THAT(document_begins(dataset), ElementsAre(0, 3, 3, 5, 5));
  EXPECT_EQ(dataset.documents().document_of(2), 0U);
  EXPECT_EQ(dataset.documents().document_of(3), 2U);
  EXPECT_EQ(dataset.documents().document_of(4), 2U);
}

TEST_F(TokenDatasetTest, EveryPrefixOfAMegatronIndexIsRefused) {
  const std::string index = golden_index();
  for (size_t size = 0; size < index.size(); ++size)
    EXPECT_THAT(refused_megatron(index.substr(0, size)), HasSubstr("x.idx"));
  EXPECT_THAT(
      refused_megatron(index + "z"), HasSubstr("1 bytes too many at the end"));
}

TEST_F(TokenDatasetTest, DamageInAMegatronIndexIsNamedWithItsOffset) {
  const std::string index = golden_index();
  const auto u64 = [](uint64_t value) { return le_bytes<uint64_t>({value}); };
  EXPECT_THAT(
      refused_megatron(patched(index, 0, "X")), HasSubstr("must begin with"));
  EXPECT_THAT(
      refused_megatron(patched(index, 9, u64(2))),
      HasSubstr("at byte 9: version 2"));
  EXPECT_THAT(
      refused_megatron(patched(index, 17, "\x07")),
      HasSubstr("at byte 17: dtype code 7 is floating point"));
  EXPECT_THAT(
      refused_megatron(patched(index, 17, "\x09")),
      HasSubstr("at byte 17: dtype code 9"));
  // 2^62 lengths of 4 bytes overflow 64 bits; 2^61 do not, but are not there.
  EXPECT_THAT(
      refused_megatron(patched(index, 18, u64(uint64_t{1} << 62))),
      HasSubstr("at byte 18: a count of 4611686018427387904 overflows"));
  EXPECT_THAT(
      refused_megatron(patched(index, 18, u64(uint64_t{1} << 60))),
      HasSubstr("bytes, but only"));
  EXPECT_THAT(
      refused_megatron(patched(index, 26, u64(0))),
      HasSubstr("at byte 26: the document array must have its last entry"));
  EXPECT_THAT(
      refused_megatron(patched(index, 34, "\xff\xff\xff\xff")),
      HasSubstr("at byte 34: sequence 0 has length -1"));
  EXPECT_THAT(
      refused_megatron(patched(index, 50, u64(4))),
      HasSubstr("at byte 50: sequence 1 begins at byte 4 of the .bin, but "
                "those before it end at 6"));
  EXPECT_THAT(
      refused_megatron(patched(index, 58, u64(1))),
      HasSubstr("at byte 58: document 0 begins at sequence 1"));
  EXPECT_THAT(
      refused_megatron(patched(index, 66, u64(3))),
      HasSubstr("at byte 66: document 1 begins at sequence 3"));
  EXPECT_THAT(
      refused_megatron(patched(index, 74, u64(1))),
      HasSubstr("at byte 74: the last document ends at sequence 1 of 2"));
}

TEST_F(TokenDatasetTest, ATokenFileOfAnotherLengthThanTheIndexIsRefused) {
  EXPECT_THAT(
      refused_megatron(golden_index(), golden_tokens().substr(0, 8)),
      AllOf(HasSubstr("x.bin"), HasSubstr("8 bytes"), HasSubstr("byte 10")));
  EXPECT_THAT(
      refused_megatron(golden_index(), golden_tokens() + "zz"),
      HasSubstr("12 bytes, but"));
}

TEST_F(TokenDatasetTest, ATokenOutsideTheVocabularyIsNamedWithFileAndOffset) {
  write("x.bin", golden_tokens());
  write("x.idx", golden_index());
  const auto dataset = TokenDataset::open(folder_ / "x", {.vocab_size = 4});
  std::vector<int64_t> tokens(3);
  dataset.read(0, tokens);
  EXPECT_THAT(
      message_of<DataError>([&] { dataset.read(2, tokens); }),
      AllOf(
          HasSubstr("x.bin] at byte 6: token id 4 is outside the vocabulary of "
                    "4")));
}

TEST_F(TokenDatasetTest, ANegativeTokenIsRefusedWithoutAVocabularyToo) {
  write(
      "x.npy",
      npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}",
          le_bytes<int32_t>({5, -1})));
  const auto dataset = TokenDataset::open(folder_ / "x.npy");
  std::vector<int64_t> tokens(2);
  EXPECT_THAT(
      message_of<DataError>([&] { dataset.read(0, tokens); }),
      HasSubstr("token id -1 is outside"));
}

TEST_F(TokenDatasetTest, AFileThatIsNotThereIsNamedWithWhatToDo) {
  EXPECT_THAT(
      refusal(folder_ / "absent"),
      AllOf(HasSubstr("absent.idx"), HasSubstr("brigade prepare")));
  write("x.bin", golden_tokens());
  EXPECT_THAT(refusal(folder_ / "x"), HasSubstr("not completely written"));
  EXPECT_THAT(
      refusal(folder_ / "x.bin"),
      AllOf(
          HasSubstr("tokens without a header"),
          HasSubstr(
              "numpy.save('" + (folder_ / "x.npy").string() +
              "', numpy.fromfile('" + (folder_ / "x.bin").string() +
              "', 'uint16'))")));
}

TEST_F(TokenDatasetTest, ADatasetShorterThanOneWindowIsRefused) {
  write("x.bin", golden_tokens());
  write("x.idx", golden_index());
  const auto dataset = TokenDataset::open(folder_ / "x");
  dataset.require_window(4);
  EXPECT_THAT(
      message_of<DataError>([&] { dataset.require_window(5); }),
      AllOf(HasSubstr("5 tokens"), HasSubstr("5 + 1 = 6")));
}

TEST_F(TokenDatasetTest, ReadsNanotronsTokensInBothWidths) {
  write("a.ds", le_bytes<uint16_t>({1, 2, 60000}));
  write("a.ds.index", le_bytes<uint64_t>({2, 3}));
  write("b.ds", le_bytes<uint32_t>({1, 2, 90000}));
  write("b.ds.index", le_bytes<uint64_t>({2, 3}));
  const auto narrow = TokenDataset::open(folder_ / "a.ds");
  EXPECT_THAT(all_tokens(narrow), ElementsAre(1, 2, 60000));
  EXPECT_THAT(document_begins(narrow), ElementsAre(0, 2, 3));
  EXPECT_THAT(
      all_tokens(TokenDataset::open(folder_ / "b.ds")),
      ElementsAre(1, 2, 90000));
}

TEST_F(TokenDatasetTest, NanotronsWidthIsNeverGuessed) {
  write("a.ds", le_bytes<uint32_t>({1, 2, 90000}));
  EXPECT_THAT(refusal(folder_ / "a.ds"), HasSubstr("cannot tell whether"));
  // nanotron's own rule decides by the vocabulary.
  EXPECT_EQ(
      TokenDataset::open(folder_ / "a.ds", {.vocab_size = 65537}).num_tokens(),
      3U);
  EXPECT_EQ(
      TokenDataset::open(folder_ / "a.ds", {.vocab_size = 65536}).num_tokens(),
      6U);
  write("a.ds.metadata", "gpt2|4\n3\n3 T");
  EXPECT_EQ(TokenDataset::open(folder_ / "a.ds").num_tokens(), 3U);
  write("a.ds.metadata", "gpt2|8\n");
  EXPECT_THAT(refusal(folder_ / "a.ds"), HasSubstr("a.ds.metadata"));
}

TEST_F(TokenDatasetTest, DamagedNanotronIndexesAreRefused) {
  write("a.ds", le_bytes<uint16_t>({1, 2, 3}));
  write("a.ds.index", le_bytes<uint64_t>({2, 1}));
  EXPECT_THAT(
      refusal(folder_ / "a.ds"),
      HasSubstr("a.ds.index] at byte 8: document 1 ends at token 1"));
  write("a.ds.index", le_bytes<uint64_t>({2, 4}));
  EXPECT_THAT(refusal(folder_ / "a.ds"), HasSubstr("ends at token 4"));
  write("a.ds.index", le_bytes<uint64_t>({2, 3}) + "x");
  EXPECT_THAT(refusal(folder_ / "a.ds"), HasSubstr("not a multiple of 8"));
}

std::string llm_c(
    int32_t magic,
    int32_t version,
    int32_t count,
    const std::string& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return le_bytes(header) + tokens;
}

TEST_F(TokenDatasetTest, ReadsLlmCsTokens) {
  write("g.bin", llm_c(20240520, 1, 3, le_bytes<uint16_t>({50256, 1, 2})));
  write("l.bin", llm_c(20240801, 7, 2, le_bytes<uint32_t>({128000, 1})));
  const auto gpt2 = TokenDataset::open(folder_ / "g.bin");
  EXPECT_STREQ(gpt2.format(), "llm.c");
  EXPECT_THAT(all_tokens(gpt2), ElementsAre(50256, 1, 2));
  EXPECT_THAT(
      all_tokens(TokenDataset::open(folder_ / "l.bin")),
      ElementsAre(128000, 1));
}

TEST_F(TokenDatasetTest, DamagedLlmCFilesAreRefused) {
  write("g.bin", llm_c(20240520, 2, 1, le_bytes<uint16_t>({1})));
  EXPECT_THAT(refusal(folder_ / "g.bin"), HasSubstr("at byte 4: version 2"));
  write("g.bin", llm_c(20240520, 1, 2, le_bytes<uint16_t>({1})));
  EXPECT_THAT(
      refusal(folder_ / "g.bin"), HasSubstr("take 4 bytes after the header"));
  write("g.bin", llm_c(20240520, 1, -1, ""));
  EXPECT_THAT(refusal(folder_ / "g.bin"), HasSubstr("at byte 8"));
  write("g.bin", le_bytes<int32_t>({20240520, 1}));
  EXPECT_THAT(refusal(folder_ / "g.bin"), HasSubstr("llm.c's header"));
}

TEST_F(TokenDatasetTest, ReadsNumpyArraysOfOneAndTwoDims) {
  write(
      "a.npy",
      npy("{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }   \n",
          le_bytes<uint32_t>({1, 2, 90000})));
  write(
      "b.npy",
      npy("{\"shape\": (2, 2), 'fortran_order': False, 'descr': '<i8'}",
          le_bytes<int64_t>({1, 2, 3, 4})));
  EXPECT_THAT(
      all_tokens(TokenDataset::open(folder_ / "a.npy")),
      ElementsAre(1, 2, 90000));
  const auto rows = TokenDataset::open(folder_ / "b.npy");
  EXPECT_THAT(all_tokens(rows), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(document_begins(rows), ElementsAre(0, 2, 4));
  EXPECT_EQ(rows.documents().document_of(2), 1U);
}

TEST_F(TokenDatasetTest, DamagedNumpyFilesAreRefused) {
  const auto refused = [&](const std::string& header) {
    write("a.npy", npy(header, le_bytes<uint16_t>({1, 2})));
    return refusal(folder_ / "a.npy");
  };
  EXPECT_THAT(
      refused("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}"),
      HasSubstr("pickled objects"));
  EXPECT_THAT(
      refused("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}"),
      HasSubstr("dtype '<f4'"));
  EXPECT_THAT(
      refused("{'descr': '>u2', 'fortran_order': False, 'shape': (2,)}"),
      HasSubstr("dtype '>u2'"));
  EXPECT_THAT(
      refused("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': ()}"),
      HasSubstr("structured"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'fortran_order': False, 'shape': ()}"),
      HasSubstr("scalar"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'fortran_order': True, 'shape': (1, 2)}"),
      HasSubstr("fortran_order"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}"),
      HasSubstr("takes 6 bytes, but 4"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'fortran_order': False, 'shape': "
              "(4294967296, 4294967296)}"),
      HasSubstr("more than 2^64"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'fortran_order': False, 'shape': "
              "(99999999999999999999,)}"),
      HasSubstr("overflows"));
  EXPECT_THAT(
      refused("{'descr': '<u2', 'descr': '<u2', 'shape': (2,)}"),
      HasSubstr("comes twice"));
  EXPECT_THAT(refused("{'descr': '<u2', 'shape': (2,)}"), HasSubstr("missing"));
  EXPECT_THAT(refused("{'descr': '<u2"), HasSubstr("without its end"));
}

TEST_F(TokenDatasetTest, TheInfoBesideADatasetSurvivesARoundTrip) {
  const DatasetInfo info{
      .vocab_size = 32000,
      .tokenizer = (folder_ / "x.tokenizer").string(),
      .eos_id = 2,
      .num_tokens = 5,
      .num_documents = 2,
      .token_type = "uint16",
      .sources = {{"a \"quoted\".txt", 10, 2}}};
  write_dataset_info(folder_ / "x", info);
  EXPECT_EQ(read_dataset_info(folder_ / "x"), info);
  // The folder can be moved: the tokenizer's path is relative.
  EXPECT_THAT(
      read_bytes(folder_ / "x.json"),
      HasSubstr("\"tokenizer\": \"x.tokenizer\""));
}

TEST_F(TokenDatasetTest, ADamagedInfoIsNamedWithItsPointer) {
  write("x.json", R"({"format": "brigade-dataset", "version": 1})");
  EXPECT_THAT(
      message_of<DataError>([&] { read_dataset_info(folder_ / "x"); }),
      HasSubstr("x.json:1:1: at /: the key \"vocab_size\" is missing"));
  write("x.json", "{");
  EXPECT_THAT(
      message_of<DataError>([&] { read_dataset_info(folder_ / "x"); }),
      HasSubstr("not valid JSON"));
  write("x.json", "[1]");
  EXPECT_EQ(read_dataset_info(folder_ / "x"), std::nullopt);
}

}  // namespace
}  // namespace brigade
