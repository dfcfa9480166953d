#include "brigade/data/packed_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "brigade/data/training_data.h"
#include "data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<int64_t>;

class PackedDocumentsTest : public DataTest {
 protected:
  // Tokens first, first + 1, ... in documents of the given lengths.
  std::string dataset(
      const std::string& name,
      uint32_t first,
      const std::vector<uint64_t>& lengths) const {
    std::vector<uint64_t> ends(lengths.size());
    std::partial_sum(lengths.begin(), lengths.end(), ends.begin());
    std::vector<uint32_t> tokens(ends.empty() ? 0 : ends.back());
    std::iota(tokens.begin(), tokens.end(), first);
    write(name + ".ds.index", le_bytes(ends));
    return write(name + ".ds", le_bytes(tokens));
  }
  static TrainingDataOptions options_for(const std::string& path) {
    return {
        .parts = {{path}},
        .seq_length = 8,
        .vocab_size = 100'000,
        .dataset = {.packing = Packing::kBestFit}};
  }
  static std::string complaint(const TrainingDataOptions& options) {
    return message_of<DataError>([&] { open_training_data(options); });
  }
  static Window window_of(const SampleSource& source, uint64_t sample) {
    Window window;
    source.read(sample, window);
    return window;
  }
};

// The documents of a window, each with its last target, without the padding.
// Padding begins with token 0, which the datasets here do not have.
std::vector<Tokens> documents_of(const Window& window) {
  Tokens starts = window.document_starts;
  starts.insert(starts.begin(), 0);
  starts.push_back(static_cast<int64_t>(window.inputs.size()));
  std::vector<Tokens> documents;
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    const auto begin = static_cast<size_t>(starts[d]);
    const auto end = static_cast<size_t>(starts[d + 1]);
    if (window.inputs[begin] == 0) {
      for (size_t i = begin; i < end; ++i)
        EXPECT_EQ(window.targets[i], kNoTarget);
      continue;
    }
    Tokens document(
        window.inputs.begin() + starts[d],
        window.inputs.begin() + starts[d + 1]);
    for (size_t i = begin; i + 1 < end; ++i)
      EXPECT_EQ(window.targets[i], window.inputs[i + 1]);
    document.push_back(window.targets[end - 1]);
    documents.push_back(document);
  }
  return documents;
}

TEST_F(PackedDocumentsTest, ASequenceHoldsWholeDocumentsAndPadding) {
  // 6, 3, 3 and 1 places of 8, and documents with nothing to predict.
  const auto data =
      open_training_data(options_for(dataset("a", 10, {4, 0, 7, 1, 4, 2})));
  ASSERT_EQ(data.training_windows, 2U);
  ASSERT_TRUE(data.packing.has_value());
  EXPECT_EQ(
      describe(*data.packing, LongDocuments::kRefuse),
      "4 documents in 2 sequences, 81.25 % of 16 places taken; 2 of fewer than "
      "two tokens left out");
  const Window first = window_of(*data.training, 0);
  EXPECT_THAT(first.inputs, ElementsAre(10, 11, 12, 22, 23, 24, 26, 0));
  EXPECT_THAT(
      first.targets, ElementsAre(11, 12, 13, 23, 24, 25, 27, kNoTarget));
  EXPECT_THAT(first.document_starts, ElementsAre(3, 6, 7));
  const Window second = window_of(*data.training, 1);
  EXPECT_THAT(second.inputs, ElementsAre(14, 15, 16, 17, 18, 19, 0, 0));
  EXPECT_THAT(
      second.targets,
      ElementsAre(15, 16, 17, 18, 19, 20, kNoTarget, kNoTarget));
  EXPECT_THAT(second.document_starts, ElementsAre(6));
  EXPECT_EQ(window_of(*data.training, 2).inputs, first.inputs);
}

TEST_F(PackedDocumentsTest, EveryEpochHasEachDocumentOnceAndWhole) {
  std::mt19937 random(1);
  std::vector<uint64_t> lengths(400);
  for (uint64_t& length : lengths)
    length = 2 + random() % 8;
  const std::string path = dataset("a", 1, lengths);
  std::set<Tokens> expected;
  int64_t token = 1;
  for (const uint64_t length : lengths) {
    Tokens document(length);
    std::iota(document.begin(), document.end(), token);
    token += static_cast<int64_t>(length);
    expected.insert(document);
  }
  for (const int64_t block : {0, 16}) {
    TrainingDataOptions options = options_for(path);
    options.dataset.shuffle = true;
    options.dataset.shuffle_block = block;
    options.seed = 5;
    const auto data = open_training_data(options);
    const uint64_t epoch = data.training->samples_per_epoch();
    std::set<std::vector<Tokens>> orders;
    std::set<Tokens> neighbours;  // the first document's
    for (uint64_t e = 0; e < 5; ++e) {
      std::vector<Tokens> seen;
      for (uint64_t s = 0; s < epoch; ++s) {
        const auto documents =
            documents_of(window_of(*data.training, e * epoch + s));
        seen.insert(seen.end(), documents.begin(), documents.end());
        if (documents[0][0] == 1 && documents.size() > 1)
          neighbours.insert(documents[1]);
      }
      EXPECT_EQ(seen.size(), lengths.size());
      EXPECT_EQ(std::set<Tokens>(seen.begin(), seen.end()), expected);
      orders.insert(seen);
    }
    EXPECT_EQ(orders.size(), 5U);
    // Within a block the contents of a sequence stay the same.
    if (block > 0) {
      EXPECT_LE(neighbours.size(), 1U);
    }
  }
}

TEST_F(PackedDocumentsTest, DocumentsOfOneLengthChangePlacesBetweenEpochs) {
  // Sequences of one document of 5 and one of 3 places; the pairs change.
  TrainingDataOptions options = options_for(
      dataset("a", 1, {6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4}));
  options.dataset.shuffle = true;
  const auto data = open_training_data(options);
  const uint64_t epoch = data.training->samples_per_epoch();
  ASSERT_EQ(epoch, 8U);
  std::map<int64_t, std::set<int64_t>> beside;
  for (uint64_t s = 0; s < 6 * epoch; ++s) {
    const auto documents = documents_of(window_of(*data.training, s));
    ASSERT_EQ(documents.size(), 2U);
    beside[documents[0][0]].insert(documents[1][0]);
  }
  EXPECT_EQ(beside.size(), 8U);
  for (const auto& [first, others] : beside)
    EXPECT_GT(others.size(), 1U) << first;
}

TEST_F(PackedDocumentsTest, AMaskGoesWithItsDocument) {
  const std::string path = dataset("a", 10, {4, 7});
  LossMaskWriter mask;
  for (const int counts : {1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1})
    mask.append(counts != 0);
  mask.commit(folder_ / "a.mask");
  TrainingDataOptions options = options_for(path);
  options.seq_length = 9;
  const auto data = open_training_data(options);
  EXPECT_EQ(data.counting_tokens, 5U);
  const Window window = window_of(*data.training, 0);
  EXPECT_THAT(window.inputs, ElementsAre(14, 15, 16, 17, 18, 19, 10, 11, 12));
  // The first token of a document is never a target, whatever the mask says.
  EXPECT_THAT(
      window.targets,
      ElementsAre(
          15,
          kNoTarget,
          kNoTarget,
          kNoTarget,
          kNoTarget,
          20,
          kNoTarget,
          12,
          kNoTarget));
}

TEST_F(PackedDocumentsTest, LongDocumentsAreRefusedSkippedCutOrSplit) {
  TrainingDataOptions options = options_for(dataset("a", 10, {3, 20, 9, 1, 4}));
  EXPECT_THAT(
      complaint(options),
      AllOf(
          HasSubstr("a.ds] 1 of 5 documents are longer than the 9 tokens that "
                    "training.seq_length = 8 holds; the first is document 1, "
                    "of 20"),
          HasSubstr("dataset.long_documents to skip, cut or split")));
  const auto all_of = [&](LongDocuments choice, const std::string& text) {
    options.dataset.long_documents = choice;
    const auto data = open_training_data(options);
    EXPECT_EQ(describe(*data.packing, choice), text);
    std::set<Tokens> documents;
    for (uint64_t s = 0; s < data.training->samples_per_epoch(); ++s) {
      for (const Tokens& document : documents_of(window_of(*data.training, s)))
        documents.insert(document);
    }
    return documents;
  };
  const Tokens first{10, 11, 12};
  const Tokens third{33, 34, 35, 36, 37, 38, 39, 40, 41};
  const Tokens last{43, 44, 45, 46};
  EXPECT_THAT(
      all_of(
          LongDocuments::kSkip,
          "3 documents in 2 sequences, 81.25 % of 16 places taken; 1 longer "
          "than a sequence left out, 1 of fewer than two tokens left out"),
      ElementsAre(first, third, last));
  EXPECT_THAT(
      all_of(
          LongDocuments::kCut,
          "4 documents in 3 sequences, 87.50 % of 24 places taken; 1 longer "
          "than a sequence cut, 1 of fewer than two tokens left out"),
      ElementsAre(
          first, Tokens{13, 14, 15, 16, 17, 18, 19, 20, 21}, third, last));
  // Each piece but the last predicts 8 tokens, including the next piece's
  // first.
  EXPECT_THAT(
      all_of(
          LongDocuments::kSplit,
          "4 documents in 4 sequences, 100.00 % of 32 places taken; 1 longer "
          "than a sequence split, 1 of fewer than two tokens left out"),
      ElementsAre(
          first,
          Tokens{13, 14, 15, 16, 17, 18, 19, 20, 21},
          Tokens{21, 22, 23, 24, 25, 26, 27, 28, 29},
          Tokens{29, 30, 31, 32},
          third,
          last));
}

TEST_F(PackedDocumentsTest, HeldOutDocumentsAreNeverTrainedOn) {
  TrainingDataOptions options =
      options_for(dataset("a", 1, std::vector<uint64_t>(50, 4)));
  options.dataset.shuffle = true;
  options.held_out_fraction = 0.1;
  const auto data = open_training_data(options);
  // Two documents of 3 places in a sequence of 8.
  EXPECT_EQ(data.training_windows, 23U);
  EXPECT_EQ(data.held_out_windows, 3U);
  for (uint64_t s = 0; s < 100; ++s) {
    for (const Tokens& document : documents_of(window_of(*data.training, s)))
      EXPECT_LE(document.back(), 180);
    for (const Tokens& document : documents_of(window_of(*data.held_out, s)))
      EXPECT_GT(document.front(), 180);
  }
}

TEST_F(PackedDocumentsTest, EachPartOfAMixtureIsPackedByItself) {
  TrainingDataOptions options =
      options_for(dataset("a", 1, std::vector<uint64_t>(40, 4)));
  options.parts.push_back({dataset("b", 501, std::vector<uint64_t>(10, 9))});
  const auto data = open_training_data(options);
  EXPECT_EQ(data.parts[0].training_windows, 20U);
  EXPECT_EQ(data.parts[1].training_windows, 10U);
  EXPECT_EQ(data.packing->documents, 50U);
  EXPECT_EQ(data.packing->taken, 200U);
  for (uint64_t s = 0; s < 40; ++s) {
    const auto documents = documents_of(window_of(*data.training, s));
    EXPECT_EQ(documents.size(), documents[0][0] > 500 ? 1U : 2U);
  }
}

TEST_F(PackedDocumentsTest, RefusesDatasetsThatCannotBePackedByName) {
  EXPECT_THAT(
      complaint(options_for(dataset("one", 1, {30}))),
      HasSubstr("one.ds' (nanotron) has no boundaries between documents: "
                "dataset.packing needs several"));
  TrainingDataOptions options = options_for(dataset("none", 1, {1, 0, 20}));
  options.dataset.long_documents = LongDocuments::kSkip;
  EXPECT_THAT(
      complaint(options),
      HasSubstr("none.ds] none of its 3 documents can be packed: 2 have fewer "
                "than two tokens, 1 are longer than the 9"));
  options = options_for(dataset("two", 1, {4, 4}));
  options.held_out_fraction = 0.9;
  EXPECT_EQ(open_training_data(options).held_out_windows, 1U);
  // The held-out documents are checked too.
  options = options_for(dataset("held", 1, {4, 4, 4, 20}));
  options.held_out_fraction = 0.1;
  EXPECT_THAT(complaint(options), HasSubstr("1 of 1 documents are longer"));
  EXPECT_THAT(
      message_of<DataError>([] { first_held_out_document(1, 0.5, "x"); }),
      HasSubstr("'x' holds 1 document(s), of which 1 would be held out"));
}

}  // namespace
}  // namespace brigade
