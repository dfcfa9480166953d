#include "brigade/evaluate/teacher_log_probs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// Tokens that the model reads at once; the one after each is a target.
struct Reading {
  uint64_t begin = 0;
  uint64_t numel = 0;
};

std::vector<Reading> readings_of(
    const TokenDataset& data,
    const TeacherLogProbsOptions& options) {
  std::vector<Reading> readings;
  if (options.info.window_length > 0) {
    const auto length = static_cast<uint64_t>(options.info.window_length);
    for (uint64_t at = 0; at + 1 < data.num_tokens(); at += length)
      readings.push_back({at, std::min(length, data.num_tokens() - 1 - at)});
    return readings;
  }
  const DocumentIndex& documents = data.documents();
  for (uint64_t d = 0; d < documents.size(); ++d) {
    const uint64_t begin = documents.begin(d);
    const uint64_t size = documents.begin(d + 1) - begin;
    if (size > static_cast<uint64_t>(options.positions) + 1)
      throw DataError(fmt::format(
          "[evaluate] '{}': document {} has {} tokens, but the model can read "
          "{}; prepare the documents with --max-tokens, or leave --by-document "
          "out",
          data.path().string(),
          d,
          size,
          options.positions + 1));
    if (size > 1)
      readings.push_back({begin, size - 1});
  }
  return readings;
}

}  // namespace

TeacherLogProbs write_teacher_log_probs(
    Scorer& scorer,
    const TokenDataset& data,
    const TeacherLogProbsOptions& options,
    const std::function<void(int64_t done, int64_t count)>& progress) {
  const std::vector<Reading> readings = readings_of(data, options);
  if (readings.empty())
    throw DataError(fmt::format(
        "[evaluate] '{}' has fewer than two tokens", data.path().string()));
  const auto count = static_cast<int64_t>(readings.size());
  const auto reading_of = [&](int64_t window) {
    return readings[static_cast<size_t>(window)];
  };
  std::optional<TeacherFileWriter> file;  // rank 0's
  TeacherLogProbs result;
  scorer.top_tokens(
      {.windows = count,
       .rows = options.rows,
       .k = options.info.k,
       .vocabulary = options.info.vocabulary,
       .read =
           [&](int64_t window) {
             const Reading reading = reading_of(window);
             std::vector<int64_t> ids(reading.numel);
             data.read(reading.begin, ids);
             return ids;
           },
       .take =
           [&](int64_t window, const TeacherTokens& of_targets) {
             if (!file)
               file.emplace(options.path, data, options.info);
             const Reading reading = reading_of(window);
             while (file->next_token() <= reading.begin)
               file->append_nothing();
             file->append(of_targets);
             result.tokens += reading.numel;
             for (const float log_prob : of_targets.log_probs)
               result.probability += std::exp(double{log_prob});
           }},
      [&](int64_t done) { progress(done, count); });
  if (!file)
    return result;
  while (file->next_token() < data.num_tokens())
    file->append_nothing();
  file->commit();
  result.probability /= static_cast<double>(result.tokens);
  return result;
}

}  // namespace brigade
