// Questions for a model as lm-evaluation-harness asks them, one JSON object per
// line. A file holds one of two kinds:
//
//   {"context": "...", "choices": [" a", " b"], "gold": 1}   multiple choice
//   {"context": "...", "choices": [" word"], "gold": 0}      last word
//
// is the harness's multiple_choice, or, where all requests have one choice, its
// loglikelihood: right if every token of the choice is the likeliest at its
// place. An optional "target_delimiter" stands between the context and each
// choice, and is no part of the choice.
//
//   {"text": "..."}                                          whole texts
//
// is its loglikelihood_rolling.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/evaluate/scorer.h"

namespace brigade {

struct TaskRequest {
  std::string context;
  std::string target_delimiter;
  std::vector<std::string> choices;  // none is empty
  size_t gold = 0;
};

// One of the two is empty.
struct Task {
  std::vector<TaskRequest> requests;
  std::vector<std::string> texts;
};

// Throws DataError at the file, line and JSON path of a problem.
Task read_task(const std::filesystem::path& path);

struct TaskResult {
  int64_t requests = 0;
  double accuracy = 0;
  // Log-likelihoods divided by the choices' numbers of characters, as the
  // harness's acc_norm. Absent where all requests have one choice.
  std::optional<double> normalized_accuracy;
  // exp of the mean of -ln p of the only choices. Absent where a request has
  // several.
  std::optional<double> perplexity;
};

TaskResult rate(
    const std::vector<TaskRequest>& requests,
    const std::vector<std::vector<ContinuationScore>>& scores);

struct TextResult {
  int64_t texts = 0;
  double word_perplexity = 0;  // words: what white space separates
  double byte_perplexity = 0;
  double bits_per_byte = 0;
};

// `nats`: -ln p of each text. Throws DataError where all texts are empty.
TextResult rate_texts(
    const std::vector<std::string>& texts,
    const std::vector<double>& nats);

}  // namespace brigade
