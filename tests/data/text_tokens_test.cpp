#include "brigade/data/text_tokens.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "brigade/data/loader.h"
#include "brigade/data/prepare.h"
#include "brigade/data/text_cache.h"
#include "brigade/data/text_windows.h"
#include "brigade/data/training_data.h"
#include "brigade/files/lock.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Documents of very different lengths as lines of JSON.
std::string some_lines(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += "{\"text\": \"";
    for (auto n = random() % (i % 50 == 0 ? 20000 : 200); n > 0; --n)
      lines += static_cast<char>('a' + random() % 26);
    lines += "\"}\n";
  }
  return lines;
}

class TextTokensTest : public DataTest {
 protected:
  TextTokensTest() {
    write("in/b.txt", "of a file that is one document, after the others");
    write("in/a.jsonl", some_lines(1, 900));
  }
  TextInput source() const {
    return {.paths = {folder_ / "in"}, .tokenizer = "bytes"};
  }
  std::shared_ptr<TextTokens> open() const {
    return std::make_shared<TextTokens>(
        source(), TextTokensOptions{.folder = folder_ / "cache"});
  }
  // The dataset that `brigade prepare` makes of the same files.
  std::shared_ptr<const TokenDataset> prepared() const {
    PrepareOptions options;
    options.inputs = source().paths;
    options.out_prefix = folder_ / "out/x";
    options.tokenizer = "bytes";
    options.existing = PrepareOptions::Existing::kOverwrite;
    prepare(options);
    return std::make_shared<const TokenDataset>(
        TokenDataset::open(options.out_prefix));
  }
  static void expect_equal(const TokenDataset& one, const TokenDataset& other) {
    ASSERT_EQ(one.num_tokens(), other.num_tokens());
    std::vector<int64_t> tokens(one.num_tokens());
    std::vector<int64_t> expected(one.num_tokens());
    one.read(0, tokens);
    other.read(0, expected);
    EXPECT_TRUE(tokens == expected);
    ASSERT_EQ(one.documents().size(), other.documents().size());
    for (uint64_t d = 0; d <= one.documents().size(); ++d)
      ASSERT_EQ(one.documents().begin(d), other.documents().begin(d));
  }
};

TEST_F(TextTokensTest, AreThoseOfThePreparedDataset) {
  const auto tokens = open();
  const auto whole = tokens->wait_for_all();
  EXPECT_TRUE(whole.is_whole);
  expect_equal(*whole.dataset, *prepared());
  // A later process finds them, and no files of their making are left.
  expect_equal(*open()->wait_for(1).dataset, *prepared());
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder_ / "cache")) {
    EXPECT_NE(entry.path().filename(), "growing");
    EXPECT_NE(entry.path().filename(), "lock");
  }
}

TEST_F(TextTokensTest, AreMadeOfEveryKindOfFile) {
  const std::string lines = some_lines(2, 300);
  const std::string more = some_lines(3, 300);
  write("in/a.jsonl", lines);
  write("in/c.txt.gz", gzipped("one document, compressed"));
  write("in/d.jsonl.gz", gzipped(more));
  write("in/e/f.jsonl.zst", zstandard(lines));
  write("in/e/README.md", "no text");
  // An empty text is not a document.
  const auto documents = [](std::string_view text) {
    uint64_t count = 0;
    for (size_t at = 0; (at = text.find("\"}\n", at)) != text.npos; ++at)
      count += text[at - 1] != '"';
    return count;
  };
  const auto tokens = open()->wait_for_all();
  EXPECT_EQ(
      tokens.dataset->documents().size(),
      2 * documents(lines) + documents(more) + 2);
  expect_equal(*tokens.dataset, *prepared());
}

TEST_F(TextTokensTest, BeginEachDocumentWithATokenWhereThatIsAsked) {
  TextInput source = this->source();
  source.prepend_bos = true;
  TextTokens tokens(source, {.folder = folder_ / "cache"});
  PrepareOptions options;
  options.inputs = source.paths;
  options.out_prefix = folder_ / "out/bos";
  options.tokenizer = "bytes";
  options.begin_of_document = PrepareOptions::BeginOfDocument::kPrepend;
  prepare(options);
  expect_equal(
      *tokens.wait_for_all().dataset, TokenDataset::open(options.out_prefix));
}

// When the process that makes them ends, another one takes over.
TEST_F(TextTokensTest, AreMadeByOneOfManyAndByAnotherWhenThatOneEnds) {
  auto first = open();
  const auto second = open();
  const auto third = open();
  first->wait_for(1);
  first = nullptr;
  const auto one = second->wait_for_all();
  const auto other = third->wait_for_all();
  expect_equal(*one.dataset, *prepared());
  expect_equal(*other.dataset, *one.dataset);
}

TEST_F(TextTokensTest, DifferForOtherTextOrOptions) {
  const uint64_t before = open()->wait_for_all().dataset->num_tokens();
  write("in/c.txt", "more");
  EXPECT_EQ(open()->wait_for_all().dataset->num_tokens(), before + 5);
  TextInput source = this->source();
  source.prepend_bos = true;
  TextTokens tokens(source, {.folder = folder_ / "cache"});
  EXPECT_GT(tokens.wait_for_all().dataset->num_tokens(), before + 5);
}

// A run that completes others removes those that no run began to use for a
// month, except what a process still makes, and no other folders.
TEST_F(TextTokensTest, AreRemovedAMonthAfterTheirLastUse) {
  namespace fs = std::filesystem;
  const fs::path cache = folder_ / "cache";
  const auto age = [](const fs::path& path, std::chrono::hours hours) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - hours);
  };
  const auto folders = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(cache))
      names.insert(entry.path().filename());
    return names;
  };
  open()->wait_for_all();
  const std::string old = *folders().begin();
  const std::string locked(32, 'a');
  fs::create_directory(cache / locked);
  fs::create_directory(cache / "somebody-else");
  const auto lock =
      FileLock::try_lock(cache / locked / "lock", FileLock::File::kRemove);
  for (const std::string& name : {old, locked, std::string("somebody-else")})
    age(cache / name, kTextCacheKept - std::chrono::hours(1));
  const auto complete_another = [&](const std::string& text) {
    write("other.txt", text);
    TextTokens(
        {.paths = {folder_ / "other.txt"}, .tokenizer = "bytes"},
        {.folder = cache})
        .wait_for_all();
  };
  complete_another("one");
  EXPECT_THAT(folders(), ::testing::Contains(old));
  for (const std::string& name : {old, locked, std::string("somebody-else")})
    age(cache / name, kTextCacheKept + std::chrono::hours(1));
  complete_another("another");
  EXPECT_EQ(folders().size(), 4U);  // "one", "another"
  EXPECT_THAT(folders(), ::testing::Not(::testing::Contains(old)));
  EXPECT_THAT(folders(), ::testing::Contains(locked));
  EXPECT_THAT(folders(), ::testing::Contains("somebody-else"));
  // A run that begins to use them counts as a use, and makes missing ones
  // again.
  expect_equal(*open()->wait_for_all().dataset, *prepared());
  age(cache / old, kTextCacheKept + std::chrono::hours(1));
  open()->wait_for_all();
  complete_another("a third");
  EXPECT_THAT(folders(), ::testing::Contains(old));
}

TEST_F(TextTokensTest, WrongTextIsNamedToEveryReader) {
  write("in/a.jsonl", "{\"text\": \"a\"}\n{\"body\": \"b\"}\n");
  const auto first = open();
  const auto second = open();
  for (const auto& tokens : {first, second, first}) {
    EXPECT_THAT(
        message_of<DataError>([&] { tokens->wait_for_all(); }),
        AllOf(HasSubstr("a.jsonl] at byte"), HasSubstr("line 2")));
  }
  EXPECT_THAT(
      message_of<DataError>([&] {
        TextTokens(
            {.paths = {write("e/e.txt", "")}, .tokenizer = "bytes"},
            {.folder = folder_ / "cache"})
            .wait_for_all();
      }),
      HasSubstr("there is no text in"));
  EXPECT_THAT(
      message_of<DataError>([&] {
        TextTokens(
            {.paths = {"/dev/null"}, .tokenizer = "bytes"},
            {.folder = folder_ / "cache"});
      }),
      HasSubstr("no regular file"));
}

// Every state of growing files gives the windows and documents of the whole.
TEST_F(TextTokensTest, KeepTheirDocumentsWhileFilesGrow) {
  const std::vector<uint64_t> ends = {3, 4, 9};
  for (uint64_t tokens = 1; tokens <= 9; ++tokens) {
    // Document ends are written before their tokens.
    for (size_t known = 0; known <= ends.size(); ++known) {
      if (known < ends.size() && ends[known] <= tokens)
        continue;
      const DocumentIndex index = DocumentIndex::growing_ends(
          std::as_bytes(std::span(ends).first(known)), tokens);
      for (uint64_t t = 0; t < tokens; ++t) {
        const uint64_t document = index.document_of(t);
        EXPECT_EQ(document, t < 3 ? 0U : t < 4 ? 1U : 2U);
        EXPECT_EQ(index.begin(document), t < 3 ? 0U : t < 4 ? 3U : 4U);
      }
      EXPECT_EQ(index.begin(index.size()), tokens);
    }
  }
}

TEST_F(TextTokensTest, GiveTheWindowsOfThePreparedDatasetOverEpochs) {
  constexpr int64_t kSeqLength = 100;
  const auto dataset = prepared();
  const uint64_t windows = count_windows(dataset->num_tokens(), kSeqLength);
  for (const int64_t block : {0, 1, 7, 100, 1000000}) {
    SCOPED_TRACE(block);
    std::filesystem::remove_all(folder_ / "cache");
    BatchSamplerOptions order{
        .seed = 5, .shuffle = block > 0, .shuffle_block = block};
    const TextWindowSource text(open(), kSeqLength, order);
    order.windows = {0, windows};
    const WindowSource expected(dataset, kSeqLength, order);
    Window one;
    Window other;
    for (uint64_t sample = 0; sample < 2 * windows + 50; ++sample) {
      text.read(sample, one);
      expected.read(sample, other);
      ASSERT_EQ(one.inputs, other.inputs) << sample;
      ASSERT_EQ(one.targets, other.targets) << sample;
      ASSERT_EQ(one.document_starts, other.document_starts) << sample;
    }
    EXPECT_EQ(text.samples_per_epoch(), windows);
  }
}

// The layout and the step at which a run continues do not matter.
TEST_F(TextTokensTest, TrainingDataIsThatOfThePreparedDataset) {
  prepared();
  TrainingDataOptions options{
      .seq_length = 64,
      .vocab_size = 259,
      .seed = 3,
      .dataset = {.shuffle = true}};
  options.scan.cache_dir = folder_ / "cache";
  options.dataset.long_documents = LongDocuments::kSplit;
  enum class Order { kWindows, kDocumentEpochs, kPacked };
  for (const Order order :
       {Order::kWindows, Order::kDocumentEpochs, Order::kPacked}) {
    for (const double held_out : {0.0, 0.1}) {
      for (const int64_t block : {0, 16}) {
        options.dataset.document_epochs = order == Order::kDocumentEpochs;
        options.dataset.packing =
            order == Order::kPacked ? Packing::kBestFit : Packing::kNone;
        options.held_out_fraction = held_out;
        options.dataset.shuffle_block = block;
        options.parts = {{.path = folder_ / "out/x"}};
        const TrainingData expected = open_training_data(options);
        options.parts = {{.path = "in", .text = source()}};
        const TrainingData text = open_training_data(options);
        Window one;
        Window other;
        for (uint64_t sample = 0; sample < 3000; sample += 7) {
          text.training->read(sample, one);
          expected.training->read(sample, other);
          ASSERT_EQ(one.inputs, other.inputs);
        }
        ASSERT_EQ(text.held_out == nullptr, held_out == 0);
        if (text.held_out) {
          text.held_out->read(2, one);
          expected.held_out->read(2, other);
          EXPECT_EQ(one.inputs, other.inputs);
        }
      }
    }
  }
}

// The ranks of a host read the same text while one of them tokenizes it.
TEST_F(
    TextTokensTest,
    EveryRankOfEveryLayoutHasItsBatchesOfThePreparedDataset) {
  prepared();
  TrainingDataOptions options{.seq_length = 64, .vocab_size = 259, .seed = 3};
  options.scan.cache_dir = folder_ / "cache";
  options.dataset.shuffle = true;
  options.dataset.shuffle_block = 16;
  const std::vector<BatchLayout> layouts = {
      {.micro_batch_size = 4, .accumulation_steps = 2, .dp_size = 1},
      {.micro_batch_size = 3, .accumulation_steps = 1, .dp_size = 2},
      {.micro_batch_size = 1, .accumulation_steps = 3, .dp_size = 5}};
  for (const BatchLayout& layout : layouts) {
    std::filesystem::remove_all(folder_ / "cache");
    options.parts = {{.path = folder_ / "out/x"}};
    const auto expected = open_training_data(options).training;
    options.parts = {{.path = "in", .text = source()}};
    // Ranks of tp, pp and cp have loaders of their own with the same dp_rank.
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int64_t rank = 0; rank < 2 * layout.dp_size; ++rank) {
      BatchLayout of_rank = layout;
      of_rank.dp_rank = rank % layout.dp_size;
      ranks.push_back(std::make_unique<Loader>(
          open_training_data(options).training,
          LoaderOptions{.layout = of_rank, .reset_attention = true}));
      ranks.back()->seek_sample(24 * static_cast<uint64_t>(layout.dp_size));
    }
    for (int64_t rank = 0; rank < 2 * layout.dp_size; ++rank) {
      SCOPED_TRACE(rank);
      BatchLayout of_rank = layout;
      of_rank.dp_rank = rank % layout.dp_size;
      Loader prepared_rank(
          expected, {.layout = of_rank, .reset_attention = true});
      prepared_rank.seek_sample(24 * static_cast<uint64_t>(layout.dp_size));
      for (int batch = 0; batch < 40; ++batch) {
        const Batch one = ranks[static_cast<size_t>(rank)]->next();
        const Batch other = prepared_rank.next();
        ASSERT_EQ(one.inputs, other.inputs) << batch;
        ASSERT_EQ(one.targets, other.targets) << batch;
        ASSERT_EQ(one.position_ids, other.position_ids) << batch;
      }
    }
  }
}

TEST_F(TextTokensTest, ATextThatIsTooShortForAWindowIsNamed) {
  const TextWindowSource source(open(), 1 << 30, {.shuffle = false});
  Window window;
  EXPECT_THAT(
      message_of<DataError>([&] { source.read(0, window); }),
      HasSubstr("one window takes training.seq_length"));
}

}  // namespace
}  // namespace brigade
