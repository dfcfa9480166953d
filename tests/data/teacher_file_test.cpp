#include "brigade/data/teacher_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "brigade/data/megatron_writer.h"
#include "brigade/data/training_data.h"
#include "data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The teacher of these tests gives token t the ids t and 30 - t with the
// log-probabilities -t / 4 and -t / 2.
class TeacherFileTest : public DataTest {
 protected:
  TeacherFileTest() { write_dataset("tokens", 10); }
  // Tokens from `first` on in documents of 4, 1 and 5 tokens.
  void write_dataset(
      const std::string& name,
      int32_t first,
      const std::vector<size_t>& sizes = {4, 1, 5}) const {
    MegatronWriter writer(folder_ / name, {.type = TokenType::kU16});
    for (const size_t size : sizes) {
      std::vector<int32_t> document(size);
      std::iota(document.begin(), document.end(), first);
      first += static_cast<int32_t>(size);
      std::vector<std::byte> bytes;
      append_tokens(TokenType::kU16, document, bytes);
      writer.append(bytes);
      writer.end_document();
    }
    writer.commit();
  }
  TokenDataset dataset(const std::string& name = "tokens") const {
    return TokenDataset::open(folder_ / name);
  }
  static TeacherTokens said_of(int64_t token) {
    const auto t = static_cast<float>(token);
    return {2, {token, 30 - token}, {-t / 4, -t / 2}};
  }
  std::filesystem::path path() const { return folder_ / "teacher.topk"; }
  // The teacher read windows, or each document by itself (length 0).
  void write_teacher(int64_t window_length) const {
    const TokenDataset data = dataset();
    TeacherFileWriter writer(
        path(),
        data,
        {.k = 2,
         .vocabulary = 31,
         .window_length = window_length,
         .model = "models/large"});
    for (int64_t t = 0; t < 10; ++t) {
      const bool begins =
          window_length > 0 ? t == 0 : t == 0 || t == 4 || t == 5;
      if (begins)
        writer.append_nothing();
      else
        writer.append(said_of(t));
    }
    writer.commit();
  }
  // Changes the byte at `at` of the file.
  void damage(size_t at) const {
    std::string bytes = read_bytes(path());
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    write("teacher.topk", bytes);
  }
  std::string complaint() const {
    return message_of<DataError>([&] { TeacherFile file(path()); });
  }
  TrainingDataOptions options() const {
    TrainingDataOptions options;
    options.parts = {{.path = (folder_ / "tokens").string()}};
    options.seq_length = 3;
    options.vocab_size = 31;
    options.dataset.teacher = path().string();
    return options;
  }
  std::string refusal(const TrainingDataOptions& options) const {
    return message_of<ConfigError>([&] { open_training_data(options); });
  }
};

TEST_F(TeacherFileTest, GivesTheTeachersPredictionsForEachTarget) {
  write_teacher(3);
  const TeacherFile file(path());
  EXPECT_EQ(file.info().k, 2);
  EXPECT_EQ(file.info().vocabulary, 31);
  EXPECT_EQ(file.info().window_length, 3);
  EXPECT_EQ(file.info().model, "models/large");
  EXPECT_EQ(file.unlike(dataset()), "");
  EXPECT_TRUE(TeacherFile::is_one(path()));
  EXPECT_FALSE(TeacherFile::is_one(folder_ / "tokens.bin"));
  const TrainingData data = open_training_data(options());
  Window window;
  data.training->read(1, window);
  EXPECT_THAT(window.targets, ElementsAre(14, 15, 16));
  EXPECT_EQ(window.teacher.k, 2);
  EXPECT_THAT(window.teacher.ids, ElementsAre(4, 26, 5, 25, 6, 24));
  EXPECT_THAT(
      window.teacher.log_probs, ElementsAre(-1, -2, -1.25, -2.5, -1.5, -3));
}

TEST_F(TeacherFileTest, PaddingOfPackedDocumentsHasZeros) {
  write_teacher(0);
  TrainingDataOptions packed = options();
  packed.seq_length = 8;
  packed.dataset.packing = Packing::kBestFit;
  const TrainingData data = open_training_data(packed);
  Window window;
  data.training->read(0, window);
  // The longer document comes first.
  EXPECT_THAT(
      window.targets, ElementsAre(16, 17, 18, 19, 11, 12, 13, kNoTarget));
  EXPECT_THAT(
      window.teacher.ids,
      ElementsAre(6, 24, 7, 23, 8, 22, 9, 21, 1, 29, 2, 28, 3, 27, 0, 0));
  EXPECT_EQ(window.teacher.log_probs.size(), 16U);
  EXPECT_EQ(window.teacher.log_probs.back(), 0);
}

TEST_F(TeacherFileTest, DamageIsNamedWithItsPlace) {
  write_teacher(3);
  const std::string whole = read_bytes(path());
  const size_t record = 2 * 8 + 4;
  ASSERT_GT(whole.size(), 10 * record);
  const size_t header = whole.size() - 10 * record;
  damage(0);
  EXPECT_THAT(complaint(), HasSubstr("not the teacher's log-probabilities"));
  write("teacher.topk", whole);
  damage(8);
  EXPECT_THAT(complaint(), HasSubstr("this program reads version 1"));
  write("teacher.topk", whole);
  damage(32);  // the vocabulary
  EXPECT_THAT(complaint(), HasSubstr("than the header's"));
  write("teacher.topk", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(
      complaint(),
      AllOf(HasSubstr("199 bytes of records"), HasSubstr("each take 200")));
  write("teacher.topk", whole.substr(0, 20));
  EXPECT_THAT(complaint(), HasSubstr("only 4 are left"));
  // A record in the second window.
  write("teacher.topk", whole);
  damage(header + 5 * record);
  const TrainingData data = open_training_data(options());
  Window window;
  data.training->read(0, window);
  EXPECT_THAT(
      message_of<DataError>([&] { data.training->read(1, window); }),
      AllOf(
          HasSubstr("at byte " + std::to_string(header + 5 * record)),
          HasSubstr("token 5 of the dataset, 15, is damaged")));
}

TEST_F(TeacherFileTest, ASummaryIsOfTheTokensThatSomethingPredicts) {
  write_teacher(0);
  const TeacherSummary summary = TeacherFile(path()).summary(100);
  EXPECT_EQ(summary.records, 10U);
  EXPECT_EQ(summary.predicted, 7U);
  double sum = 0;
  for (const double t : {1, 2, 3, 6, 7, 8, 9})
    sum += std::exp(-t / 4) + std::exp(-t / 2);
  EXPECT_NEAR(summary.probability, sum / 7, 1e-7);
  EXPECT_EQ(TeacherFile(path()).summary(2).records, 2U);
  EXPECT_EQ(TeacherFile(path()).summary(2).predicted, 1U);
}

// A summary does not read the dataset's tokens, which the checksums include.
TEST_F(TeacherFileTest, ASummaryNamesARecordThatNoTeacherWrote) {
  write_teacher(3);
  const std::string whole = read_bytes(path());
  const size_t record = 2 * 8 + 4;
  const size_t at = whole.size() - 5 * record;
  const auto complaint_of = [&](size_t byte, char bits) {
    std::string bytes = whole;
    bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ bits);
    write("teacher.topk", bytes);
    return message_of<DataError>([&] { TeacherFile(path()).summary(100); });
  };
  const std::string named =
      "at byte " + std::to_string(at) + ": the record of token 5 is damaged";
  // An id beyond the vocabulary; a log-probability above 0; one below the next.
  EXPECT_THAT(complaint_of(at + 3, 1), HasSubstr(named));
  EXPECT_THAT(complaint_of(at + 8 + 3, '\x80'), HasSubstr(named));
  EXPECT_THAT(complaint_of(at + 8 + 3, '\x7f'), HasSubstr(named));
}

TEST_F(TeacherFileTest, RefusesATeacherMadeForAnotherRun) {
  write_teacher(3);
  TrainingDataOptions other = options();
  write_dataset("other", 11);
  other.parts[0].path = (folder_ / "other").string();
  EXPECT_THAT(refusal(other), HasSubstr("was made of another dataset"));
  other = options();
  other.vocab_size = 30;
  EXPECT_THAT(
      refusal(other),
      HasSubstr("has ids below 31, but the model's vocabulary has 30"));
  other = options();
  other.seq_length = 4;
  EXPECT_THAT(
      refusal(other),
      AllOf(
          HasSubstr("read windows of 3 tokens, but the student reads windows "
                    "of 4"),
          HasSubstr("--seq-length 4`")));
  other.dataset.packing = Packing::kBestFit;
  other.seq_length = 8;
  EXPECT_THAT(refusal(other), HasSubstr("--by-document`"));
  write_teacher(0);
  EXPECT_THAT(refusal(options()), HasSubstr("read each document by itself"));
  // The same tokens in as many documents with other boundaries.
  write_dataset("tokens", 10, {3, 2, 5});
  EXPECT_THAT(refusal(other), HasSubstr("was made of another dataset"));
}

TEST_F(TeacherFileTest, LogProbabilitiesThatAreNotFiniteAreRefused) {
  const TokenDataset data = dataset();
  EXPECT_THAT(
      message_of<NumericError>([&] {
        TeacherFileWriter writer(path(), data, {.k = 1, .vocabulary = 31});
        writer.append(
            TeacherTokens{1, {0}, {-std::numeric_limits<float>::infinity()}});
      }),
      HasSubstr("in the place of token 0 is -inf"));
  EXPECT_THAT(files(), Each(::testing::Not(HasSubstr("topk"))));
}

}  // namespace
}  // namespace brigade
