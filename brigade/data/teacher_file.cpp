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

constexpr std::string_view kTeacherMagic = "BRGDTOPK";
constexpr uint32_t kTeacherVersion = 1;
constexpr uint64_t kBytesPerToken = sizeof(uint32_t) + sizeof(float);

uint64_t record_bytes(int64_t k) {
  return static_cast<uint64_t>(k) * kBytesPerToken + sizeof(uint32_t);
}

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

TeacherFile::TeacherFile(const std::filesystem::path& path) : file_(path) {
  ByteReader reader(path.string(), file_.bytes());
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
  info_.k = reader.number<uint32_t>("k");
  if (info_.k == 0)
    reader.fail(12, "k is 0");
  num_tokens_ = reader.number<uint64_t>("the number of tokens");
  num_documents_ = reader.number<uint64_t>("the number of documents");
  info_.vocabulary = reader.number<uint32_t>("the vocabulary");
  if (info_.k > info_.vocabulary)
    reader.fail(
        12, "k {} of a vocabulary of {} tokens", info_.k, info_.vocabulary);
  info_.window_length = reader.number<uint32_t>("the length of windows");
  fingerprint_ = read_text(reader, "the dataset's fingerprint");
  info_.model = read_text(reader, "the teacher's name");
  const uint64_t end = reader.offset();
  const uint32_t sum = checksum_of(as_text(file_.bytes().first(end)));
  if (reader.number<uint32_t>("the header's checksum") != sum)
    reader.fail(end, "another checksum than the header's: it is damaged");
  begin_ = reader.offset();
  const uint64_t expected =
      checked_multiply(num_tokens_, record_bytes(info_.k)).value_or(UINT64_MAX);
  if (reader.remaining() != expected)
    reader.fail(
        begin_,
        "{} bytes of records, but {} tokens with {} each take {}: the file is "
        "damaged or not whole; make it again with `brigade evaluate --top-k`",
        reader.remaining(),
        num_tokens_,
        info_.k,
        expected);
}

bool TeacherFile::is_one(const std::filesystem::path& path) {
  std::string magic(kTeacherMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return magic == kTeacherMagic;
}

std::string TeacherFile::unlike(const TokenDataset& dataset) const {
  const std::string found = fingerprint_of(dataset, info_.window_length);
  const std::string then = this->dataset();
  const std::string now =
      describe(dataset.num_tokens(), dataset.documents().size(), found);
  return then == now
             ? ""
             : fmt::format(
                   "{}, but '{}' has {}", then, dataset.path().string(), now);
}

std::string TeacherFile::dataset() const {
  return describe(num_tokens_, num_documents_, fingerprint_);
}

void TeacherFile::read(
    uint64_t first,
    std::span<const int64_t> tokens,
    TeacherTokens& into) const {
  BRIGADE_ASSERT(first + tokens.size() <= num_tokens_);
  const auto k = static_cast<uint64_t>(info_.k);
  const uint64_t size = record_bytes(info_.k);
  into.k = info_.k;
  for (uint64_t i = 0; i < tokens.size(); ++i) {
    const uint64_t at = begin_ + (first + i) * size;
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
    for (uint64_t j = 0; j < k; ++j)
      into.ids.push_back(load_at<uint32_t>(content, j));
    const auto log_probs = content.subspan(k * sizeof(uint32_t));
    for (uint64_t j = 0; j < k; ++j)
      into.log_probs.push_back(load_at<float>(log_probs, j));
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
