#include "brigade/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "brigade/data/prepare.h"
#include "brigade/data/training_data.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Token i of sample g is 1000 g + i; documents begin at `starts`.
class CountingSource : public SampleSource {
 public:
  explicit CountingSource(int64_t seq_length, uint64_t bad_sample = ~0ULL)
      : seq_length_(seq_length), bad_sample_(bad_sample) {}
  int64_t seq_length() const override { return seq_length_; }
  uint64_t samples_per_epoch() const override { return 1000; }
  void read(uint64_t sample, Window& window) const override {
    if (sample == bad_sample_)
      throw DataError("sample " + std::to_string(sample) + " is damaged");
    const auto first = static_cast<int64_t>(1000 * sample);
    window.inputs.resize(static_cast<size_t>(seq_length_));
    window.targets.resize(window.inputs.size());
    std::iota(window.inputs.begin(), window.inputs.end(), first);
    std::iota(window.targets.begin(), window.targets.end(), first + 1);
    window.document_starts = {1, 3};
  }

 private:
  int64_t seq_length_;
  uint64_t bad_sample_;
};

// The T + 1 tokens of a sample whose targets all count.
std::vector<int64_t> tokens_of(const SampleSource& source, uint64_t sample) {
  Window window;
  source.read(sample, window);
  window.inputs.push_back(window.targets.back());
  return window.inputs;
}

std::vector<int64_t> starts_of(const SampleSource& source, uint64_t sample) {
  Window window;
  source.read(sample, window);
  return window.document_starts;
}

TEST(Loader, TargetsAreTheInputsMovedOnByOne) {
  Loader loader(
      std::make_shared<CountingSource>(3), {.layout = {.micro_batch_size = 2}});
  const Batch batch = loader.next();
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.seq_length, 3);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 1000, 1001, 1002));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 1001, 1002, 1003));
  EXPECT_THAT(batch.position_ids, IsEmpty());
}

TEST(Loader, DealsEveryStepTheSameSamplesWhateverTheLayout) {
  // The oracle is one rank with one large micro-batch.
  const auto samples_of_steps = [](const BatchLayout& base) {
    std::map<uint64_t, std::set<int64_t>> samples;
    BatchLayout layout = base;
    for (; layout.dp_rank < layout.dp_size; ++layout.dp_rank) {
      Loader loader(std::make_shared<CountingSource>(1), {.layout = layout});
      for (int64_t i = 0; i < 3 * layout.accumulation_steps; ++i) {
        const Batch batch = loader.next();
        EXPECT_EQ(batch.step, uint64_t(i / layout.accumulation_steps));
        EXPECT_EQ(batch.micro_batch, i % layout.accumulation_steps);
        samples[batch.step].insert(batch.inputs.begin(), batch.inputs.end());
      }
    }
    return samples;
  };
  const auto expected = samples_of_steps({.micro_batch_size = 12});
  EXPECT_EQ(samples_of_steps({.micro_batch_size = 6, .dp_size = 2}), expected);
  EXPECT_EQ(
      samples_of_steps(
          {.micro_batch_size = 1, .accumulation_steps = 4, .dp_size = 3}),
      expected);
  EXPECT_EQ(
      samples_of_steps({.micro_batch_size = 4, .accumulation_steps = 3}),
      expected);
}

TEST(Loader, SeekContinuesAsIfItHadRunUpToThere) {
  const LoaderOptions options{
      .layout = {.micro_batch_size = 2, .accumulation_steps = 3}};
  Loader straight(std::make_shared<CountingSource>(4), options);
  Loader resumed(std::make_shared<CountingSource>(4), options);
  resumed.next();
  resumed.seek_sample(5 * 6);
  for (int i = 0; i < 5 * 3; ++i)
    straight.next();
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(straight.next().inputs, resumed.next().inputs);
}

// The position of a run that is continued with another batch size.
TEST(Loader, SeeksASampleAtWhichNoStepOfThisSizeBegins) {
  const LoaderOptions options{
      .layout = {.micro_batch_size = 2, .accumulation_steps = 3}};
  Loader loader(std::make_shared<CountingSource>(4), options);
  loader.seek_sample(7);
  Loader sevens(
      std::make_shared<CountingSource>(4), {.layout = {.micro_batch_size = 7}});
  sevens.next();
  const std::vector<int64_t> expected = sevens.next().inputs;
  std::vector<int64_t> actual;
  for (int i = 0; i < 3; ++i) {
    const auto inputs = loader.next().inputs;
    actual.insert(actual.end(), inputs.begin(), inputs.end());
  }
  EXPECT_EQ(
      actual,
      std::vector<int64_t>(
          expected.begin(),
          expected.begin() + static_cast<long>(actual.size())));
  loader.seek_sample(0);
  EXPECT_EQ(loader.next().step, 0U);
}

TEST(Loader, AFailureSurfacesAfterTheGoodBatchesAndStays) {
  Loader loader(std::make_shared<CountingSource>(4, 2), {});
  EXPECT_EQ(loader.next().step, 0U);
  EXPECT_EQ(loader.next().step, 1U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        message_of<DataError>([&] { loader.next(); }),
        HasSubstr("sample 2 is damaged"));
  }
  loader.seek_sample(3);
  EXPECT_EQ(loader.next().step, 0U);
}

TEST(Loader, StopsCleanlyWithAFullQueueAndWithAFailure) {
  for (int i = 0; i < 50; ++i) {
    Loader full(std::make_shared<CountingSource>(4), {.queue_capacity = 1});
    Loader failed(std::make_shared<CountingSource>(4, 0), {});
  }
}

TEST(Loader, TellsWhereDocumentsBeginWhenAttentionIsReset) {
  Loader loader(
      std::make_shared<CountingSource>(5),
      {.layout = {.micro_batch_size = 2}, .reset_attention = true});
  const Batch batch = loader.next();
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 0, 1, 0, 1, 0, 0, 1, 0, 1));
}

class TrainingDataTest : public DataTest {
 protected:
  // `count` tokens first, first + 1, ... in documents that end at `ends`.
  std::string dataset(
      const std::string& name,
      uint32_t first,
      uint32_t count,
      const std::vector<uint64_t>& ends) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), first);
    write(name + ".index", le_bytes(ends));
    return write(name, le_bytes(tokens));
  }
};

TEST_F(TrainingDataTest, WindowsOverlapByOneTokenAndCrossDocuments) {
  const std::string path = dataset("a.ds", 100, 13, {3, 5, 5, 10, 13});
  const auto data = open_training_data(
      {.parts = {{path}}, .seq_length = 4, .vocab_size = 1000});
  EXPECT_EQ(data.training_windows, 3U);
  EXPECT_EQ(data.held_out, nullptr);
  EXPECT_THAT(
      tokens_of(*data.training, 0), ElementsAre(100, 101, 102, 103, 104));
  EXPECT_THAT(
      tokens_of(*data.training, 1), ElementsAre(104, 105, 106, 107, 108));
  EXPECT_THAT(  // the third window, second epoch
      tokens_of(*data.training, 5),
      ElementsAre(108, 109, 110, 111, 112));

  EXPECT_THAT(  // tokens 0 to 3
      starts_of(*data.training, 0),
      ElementsAre(3));
  EXPECT_THAT(  // tokens 4 to 7, 5 begins one
      starts_of(*data.training, 1),
      ElementsAre(1));
  EXPECT_THAT(  // tokens 8 to 11
      starts_of(*data.training, 2),
      ElementsAre(2));
}

TEST_F(TrainingDataTest, HeldOutWindowsAreNeverTrainedOn) {
  const std::string path = dataset("a.ds", 0, 401, {401});
  const auto data = open_training_data(
      {.parts = {{path}},
       .seq_length = 4,
       .vocab_size = 1000,
       .dataset = {.shuffle = true},
       .held_out_fraction = 0.1});
  ASSERT_EQ(data.training_windows, 90U);
  ASSERT_EQ(data.held_out_windows, 10U);
  for (uint64_t g = 0; g < 180; ++g) {
    const auto window = tokens_of(*data.training, g);
    EXPECT_LT(window[0], 360);
  }
  for (uint64_t g = 0; g < 10; ++g) {
    const auto window = tokens_of(*data.held_out, g);
    EXPECT_EQ(window[0], 360 + 4 * static_cast<int64_t>(g));
  }
}

TEST_F(TrainingDataTest, AMixtureVisitsEachPartInItsShare) {
  const std::string a = dataset("a.ds", 0, 41, {41});
  const std::string b = dataset("b.ds", 500, 41, {41});
  const auto data = open_training_data(
      {.parts = {{a, 3}, {b, 1}}, .seq_length = 4, .vocab_size = 1000});
  int from_a = 0;
  std::set<int64_t> first_of_b;
  for (uint64_t g = 0; g < 40; ++g) {
    const auto window = tokens_of(*data.training, g);
    from_a += window[0] < 500;
    if (window[0] >= 500)
      first_of_b.insert(window[0]);
  }
  EXPECT_EQ(from_a, 30);
  EXPECT_EQ(first_of_b.size(), 10U);
  EXPECT_EQ(data.training->samples_per_epoch(), 40U);
}

TEST_F(TrainingDataTest, DocumentEpochsKeepDocumentsWholeInAnOrderOfTheirOwn) {
  // Documents of 3, 0, 7, 1 and 30 tokens. Each token is its position, so that
  // the whole documents, put together here, are the oracle for windows.
  const std::vector<uint64_t> ends{3, 3, 10, 11, 41};
  const std::string path = dataset("a.ds", 0, 41, ends);
  const auto data = open_training_data(
      {.parts = {{path}},
       .seq_length = 5,
       .vocab_size = 1000,
       .seed = 3,
       .dataset = {.document_epochs = true}});
  ASSERT_EQ(data.training_windows, 8U);
  std::set<std::vector<int64_t>> epochs;
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    std::vector<int64_t> tokens;
    std::vector<int64_t> expected_starts{0};
    for (uint64_t w = 0; w < 8; ++w) {
      const auto window = tokens_of(*data.training, epoch * 8 + w);
      if (w > 0) {
        EXPECT_EQ(tokens.back(), window[0]);
        tokens.pop_back();
      }
      const auto begin = static_cast<int64_t>(tokens.size());
      tokens.insert(tokens.end(), window.begin(), window.end());
      const auto starts = starts_of(*data.training, epoch * 8 + w);
      for (const int64_t start : starts)
        expected_starts.push_back(begin + start);
    }
    ASSERT_EQ(tokens.size(), 41U);
    // Documents stay whole: each token is followed by the next one.
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto next = static_cast<uint64_t>(tokens[i]) + 1;
      const bool is_last =
          std::find(ends.begin(), ends.end(), next) != ends.end();
      if (!is_last) {
        ASSERT_EQ(tokens[i + 1], static_cast<int64_t>(next));
      }
    }
    // Every start in a window is a document's first token, except at the
    // window's beginning.
    for (const int64_t start : expected_starts) {
      const int64_t token = tokens[static_cast<size_t>(start)];
      EXPECT_TRUE(token == 0 || token == 3 || token == 10 || token == 11);
    }
    epochs.insert(tokens);
    std::sort(tokens.begin(), tokens.end());
    for (int64_t i = 0; i < 41; ++i)
      ASSERT_EQ(tokens[static_cast<size_t>(i)], i);
  }
  EXPECT_GT(epochs.size(), 3U);
}

TEST_F(TrainingDataTest, DocumentEpochsLeaveTheHeldOutWindowsAlone) {
  const std::string path = dataset("a.ds", 0, 401, {100, 250, 390, 401});
  const auto data = open_training_data(
      {.parts = {{path}},
       .seq_length = 4,
       .vocab_size = 1000,
       .dataset = {.shuffle = true, .document_epochs = true},
       .held_out_fraction = 0.1});
  for (uint64_t g = 0; g < 3 * 90; ++g) {
    const auto window = tokens_of(*data.training, g);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_LE(window[i], 360);
  }
}

// Code Llama's tokenizer has more tokens than its model rows.
TEST_F(TrainingDataTest, ATokenThatOccursIsRefusedNotALargerVocabulary) {
  write("a.txt", "abc");
  prepare(
      {.inputs = {folder_ / "a.txt"},
       .out_prefix = folder_ / "a",
       .tokenizer = "bytes",
       .end_of_document = PrepareOptions::EndOfDocument::kNone});
  const auto open = [&](int64_t vocab_size) {
    open_training_data(
        {.parts = {{(folder_ / "a").string()}},
         .seq_length = 2,
         .vocab_size = vocab_size});
  };
  open('c' + 1);  // fewer than the tokenizer's 258 tokens
  EXPECT_THAT(
      message_of<DataError>([&] { open('c'); }),
      HasSubstr("a.bin] at byte 4: token id 99 is outside the vocabulary of "
                "99"));
}

TEST_F(TrainingDataTest, ErrorsNameTheDataset) {
  const std::string path = dataset("a.ds", 0, 4, {4});
  EXPECT_THAT(
      message_of<DataError>([&] {
        open_training_data(
            {.parts = {{path}}, .seq_length = 4, .vocab_size = 1000});
      }),
      HasSubstr("a.ds] holds 4 tokens"));
  dataset("a.ds", 0, 9, {9});
  EXPECT_THAT(
      message_of<DataError>([&] {
        open_training_data(
            {.parts = {{path}}, .seq_length = 4, .vocab_size = 8});
      }),
      HasSubstr("a.ds] at byte 32: token id 8 is outside the vocabulary of 8"));
}

}  // namespace
}  // namespace brigade
