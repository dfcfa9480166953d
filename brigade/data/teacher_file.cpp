#include "brigade/data/teacher_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>

#include "brigade/base/check.h"
#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data/byte_reader.h"
#include "brigade/files/fingerprint.h"

namespace brigade {
namespace {

constexpr uint32_t kTeacherVersion = 1;
// Probabilities are at most 1, but for rounding.
constexpr float kMostLogProb = 1e-3F;
constexpr uint64_t kBytesPerToken = sizeof(uint32_t) + sizeof(float);

uint64_t record_bytes(int64_t k) {
  return static_cast<uint64_t>(k) * kBytesPerToken + sizeof(uint32_t);
}

// What a record holds before its checksum.
class RecordValues {
 public:
  RecordValues(std::span<const std::byte> record, int64_t k)
      : ids_(record),
        log_probs_(
            record.subspan(static_cast<uint64_t>(k) * sizeof(uint32_t))) {}
  int64_t id(int64_t j) const {
    return load_at<uint32_t>(ids_, static_cast<uint64_t>(j));
  }
  float log_prob(int64_t j) const {
    return load_at<float>(log_probs_, static_cast<uint64_t>(j));
  }

 private:
  std::span<const std::byte> ids_;
  std::span<const std::byte> log_probs_;
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
void append_number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& bytes, std::string_view text) {
  append_number(bytes, static_cast<uint32_t>(text.size()));
  bytes.append(text);
}

uint32_t checksum_of(std::string_view bytes) {
  return static_cast<uint32_t>(fnv1a_64(bytes));
}

uint32_t record_checksum(
    uint64_t token,
    int64_t id,
    std::span<const std::byte> content) {
  std::string bytes;
  append_number(bytes, token);
  append_number(bytes, id);
  bytes.append(as_text(content));
  return checksum_of(bytes);
}

std::string fingerprint_of(const TokenDataset& dataset, int64_t window_length) {
  std::string text = fingerprint_of_file(dataset.path());
  if (window_length > 0)
    return text;
  const DocumentIndex& documents = dataset.documents();
  uint64_t begins = 0;
  for (uint64_t d = 0; d < documents.size(); ++d)
    begins = mix_bits(begins ^ documents.begin(d));
  return fmt::format("{}, documents {:016x}", text, begins);
}

std::string
describe(uint64_t tokens, uint64_t documents, const std::string& fingerprint) {
  return fmt::format(
      "{} tokens in {} documents ({})", tokens, documents, fingerprint);
}

std::string read_text(ByteReader& reader, std::string_view what) {
  const auto length = reader.number<uint32_t>(what);
  return std::string(as_text(reader.take(length, what)));
}

}  // namespace

TeacherFileHeader parse_teacher_header(
    const std::string& file,
    std::span<const std::byte> bytes) {
  TeacherFileHeader header;
  TeacherFileInfo& info = header.info;
  ByteReader reader(file, bytes);
  const auto magic = reader.take(kTeacherMagic.size(), "the magic");
  if (std::memcmp(magic.data(), kTeacherMagic.data(), magic.size()) != 0)
    reader.fail(
        0,
        "not '{}': not the teacher's log-probabilities that `brigade evaluate "
        "--top-k` writes",
        kTeacherMagic);
  const auto version = reader.number<uint32_t>("the version");
  if (version != kTeacherVersion)
    reader.fail(
        8,
        "version {}; this program reads version {}",
        version,
        kTeacherVersion);
  info.k = reader.number<uint32_t>("k");
  if (info.k == 0)
    reader.fail(12, "k is 0");
  header.num_tokens = reader.number<uint64_t>("the number of tokens");
  header.num_documents = reader.number<uint64_t>("the number of documents");
  info.vocabulary = reader.number<uint32_t>("the vocabulary");
  if (info.k > info.vocabulary)
    reader.fail(
        12, "k {} of a vocabulary of {} tokens", info.k, info.vocabulary);
  info.window_length = reader.number<uint32_t>("the length of windows");
  header.fingerprint = read_text(reader, "the dataset's fingerprint");
  info.model = read_text(reader, "the teacher's name");
  const uint64_t end = reader.offset();
  const uint32_t sum = checksum_of(as_text(bytes.first(end)));
  if (reader.number<uint32_t>("the header's checksum") != sum)
    reader.fail(end, "another checksum than the header's: it is damaged");
  header.end = reader.offset();
  const uint64_t expected =
      checked_multiply(header.num_tokens, record_bytes(info.k))
          .value_or(UINT64_MAX);
  if (reader.remaining() != expected)
    reader.fail(
        header.end,
        "{} bytes of records, but {} tokens with {} each take {}: the file is "
        "damaged or not whole; make it again with `brigade evaluate --top-k`",
        reader.remaining(),
        header.num_tokens,
        info.k,
        expected);
  return header;
}

TeacherSummary summarize_teacher(
    const std::string& file,
    std::span<const std::byte> bytes,
    const TeacherFileHeader& header,
    uint64_t most) {
  TeacherSummary summary;
  const int64_t k = header.info.k;
  const uint64_t size = record_bytes(k);
  for (uint64_t at = header.end;
       summary.records < std::min(most, header.num_tokens);
       ++summary.records, at += size) {
    const RecordValues record(bytes.subspan(at, size), k);
    bool is_sound = true;
    bool is_prediction = false;
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      const float log_prob = record.log_prob(j);
      is_sound = is_sound && record.id(j) < header.info.vocabulary &&
                 std::isfinite(log_prob) && log_prob <= kMostLogProb &&
                 (j == 0 || log_prob <= record.log_prob(j - 1));
      is_prediction = is_prediction || record.id(j) != 0 || log_prob != 0;
      sum += std::exp(double{log_prob});
    }
    if (!is_sound)
      throw DataError(fmt::format(
          "[{}] at byte {}: the record of token {} is damaged: expected {} ids "
          "below {} and as many log-probabilities, likeliest first; make it "
          "again with `brigade evaluate --top-k`",
          file,
          at,
          summary.records,
          k,
          header.info.vocabulary));
    if (!is_prediction)
      continue;
    ++summary.predicted;
    summary.probability += sum;
  }
  if (summary.predicted > 0)
    summary.probability /= static_cast<double>(summary.predicted);
  return summary;
}

TeacherFile::TeacherFile(const std::filesystem::path& path)
    : file_(path),
      header_(parse_teacher_header(path.string(), file_.bytes())) {}

TeacherSummary TeacherFile::summary(uint64_t most) const {
  return summarize_teacher(file_.path().string(), file_.bytes(), header_, most);
}

bool TeacherFile::is_one(const std::filesystem::path& path) {
  std::string magic(kTeacherMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return magic == kTeacherMagic;
}

std::string TeacherFile::unlike(const TokenDataset& dataset) const {
  const std::string found = fingerprint_of(dataset, header_.info.window_length);
  const std::string then = this->dataset();
  const std::string now =
      describe(dataset.num_tokens(), dataset.documents().size(), found);
  return then == now
             ? ""
             : fmt::format(
                   "{}, but '{}' has {}", then, dataset.path().string(), now);
}

std::string TeacherFile::dataset() const {
  return describe(
      header_.num_tokens, header_.num_documents, header_.fingerprint);
}

void TeacherFile::read(
    uint64_t first,
    std::span<const int64_t> tokens,
    TeacherTokens& into) const {
  BRIGADE_ASSERT(first + tokens.size() <= header_.num_tokens);
  into.k = info().k;
  const uint64_t size = record_bytes(into.k);
  for (uint64_t i = 0; i < tokens.size(); ++i) {
    const uint64_t at = header_.end + (first + i) * size;
    const auto record = file_.bytes().subspan(at, size);
    const auto content = record.first(size - sizeof(uint32_t));
    const auto sum = load_at<uint32_t>(record.last(sizeof(uint32_t)), 0);
    if (record_checksum(first + i, tokens[i], content) != sum)
      throw DataError(fmt::format(
          "[{}] at byte {}: the record of token {} of the dataset, {}, is "
          "damaged, or was made for another token; make it again with "
          "`brigade evaluate --top-k`",
          file_.path().string(),
          at,
          first + i,
          tokens[i]));
    const RecordValues values(record, into.k);
    for (int64_t j = 0; j < into.k; ++j) {
      into.ids.push_back(values.id(j));
      into.log_probs.push_back(values.log_prob(j));
    }
  }
}

TeacherFileWriter::TeacherFileWriter(
    const std::filesystem::path& path,
    const TokenDataset& dataset,
    const TeacherFileInfo& info)
    : dataset_(dataset), file_(path), k_(static_cast<size_t>(info.k)) {
  std::string header(kTeacherMagic);
  append_number(header, kTeacherVersion);
  append_number(header, static_cast<uint32_t>(info.k));
  append_number(header, uint64_t{dataset.num_tokens()});
  append_number(header, uint64_t{dataset.documents().size()});
  append_number(header, static_cast<uint32_t>(info.vocabulary));
  append_number(header, static_cast<uint32_t>(info.window_length));
  append_text(header, fingerprint_of(dataset, info.window_length));
  append_text(header, info.model);
  append_number(header, checksum_of(header));
  file_.write(header);
  record_.resize(record_bytes(info.k));
}

void TeacherFileWriter::append_nothing() {
  append(std::vector<int64_t>(k_, 0), std::vector<float>(k_, 0));
}

void TeacherFileWriter::append(const TeacherTokens& of_tokens) {
  BRIGADE_ASSERT(
      of_tokens.ids.size() % k_ == 0 &&
      of_tokens.ids.size() == of_tokens.log_probs.size());
  const std::span<const int64_t> ids = of_tokens.ids;
  const std::span<const float> log_probs = of_tokens.log_probs;
  for (size_t at = 0; at < ids.size(); at += k_)
    append(ids.subspan(at, k_), log_probs.subspan(at, k_));
}

void TeacherFileWriter::append(
    std::span<const int64_t> ids,
    std::span<const float> log_probs) {
  BRIGADE_ASSERT(token_ < dataset_.num_tokens());
  int64_t token = 0;
  dataset_.read(token_, {&token, 1});
  for (size_t j = 0; j < k_; ++j) {
    if (!std::isfinite(log_probs[j]))
      throw NumericError(fmt::format(
          "[evaluate] '{}': a log-probability in the place of token {} is {}",
          dataset_.path().string(),
          token_,
          log_probs[j]));
    const auto id = static_cast<uint32_t>(ids[j]);
    std::memcpy(record_.data() + j * sizeof(id), &id, sizeof(id));
  }
  std::memcpy(
      record_.data() + k_ * sizeof(uint32_t),
      log_probs.data(),
      k_ * sizeof(float));
  const size_t content = record_.size() - sizeof(uint32_t);
  const uint32_t sum =
      record_checksum(token_, token, std::span(record_).first(content));
  std::memcpy(record_.data() + content, &sum, sizeof(sum));
  file_.write(record_.data(), record_.size());
  ++token_;
}

void TeacherFileWriter::commit() {
  BRIGADE_ASSERT(token_ == dataset_.num_tokens());
  file_.commit();
}

}  // namespace brigade
