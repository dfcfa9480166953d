// Makes the file of a teacher's top-k log-probabilities (data/teacher_file.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "brigade/data/teacher_file.h"
#include "brigade/data/token_dataset.h"
#include "brigade/evaluate/scorer.h"

namespace brigade {

struct TeacherLogProbsOptions {
  std::filesystem::path path;  // of the file, which rank 0 writes
  TeacherFileInfo info;
  int64_t positions = 0;  // the model's: the most that it reads at once
  int64_t rows = 1;       // windows or documents at a time
};

// What rank 0 has written; zeros on other ranks.
struct TeacherLogProbs {
  uint64_t tokens = 0;     // that something was expected in the place of
  double probability = 0;  // which the k tokens have together: the mean
};

// Collective over the world. `progress`: of how many windows or documents so
// many are done. Throws DataError for a document that is longer than the
// positions and one, where each is read by itself, and for a dataset of fewer
// than two tokens; NumericError and StorageError as TeacherFileWriter.
TeacherLogProbs write_teacher_log_probs(
    Scorer& scorer,
    const TokenDataset& data,
    const TeacherLogProbsOptions& options,
    const std::function<void(int64_t done, int64_t count)>& progress);

}  // namespace brigade
