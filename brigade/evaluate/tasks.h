// Questions for a model in the request form of lm-evaluation-harness, one JSON
// object per line:
//
//   {"context": "...", "choices": [" a", " b"], "gold": 1}   multiple choice
//   {"context": "...", "choices": [" word"], "gold": 0}      last word
//
// A question with several choices is answered by the likeliest; one with a
// single choice is right if every token of it is the likeliest at its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "brigade/evaluate/scorer.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

struct TaskRequest {
  std::string context;
  std::vector<std::string> choices;
  size_t gold = 0;
};

// Throws DataError at the file, line and JSON path of a problem.
std::vector<TaskRequest> read_task(const std::filesystem::path& path);

// The tokens of a request. As lm-evaluation-harness does: context and choice
// are tokenized together, and what is beyond the context's tokens is the
// choice's; spaces at a context's end belong to the choice. An empty context is
// the tokenizer's end-of-text (or first) token. Throws DataError where a choice
// has no token.
Continuations tokenize(const TaskRequest& request, const Tokenizer& tokenizer);

struct TaskResult {
  int64_t requests = 0;
  double accuracy = 0;
  // Log-likelihoods divided by the choices' lengths in bytes. Of single
  // choices the same as accuracy.
  double normalized_accuracy = 0;
  double perplexity = 0;  // exp of the mean of -ln p of the gold choices
};

TaskResult rate(
    const std::vector<TaskRequest>& requests,
    const std::vector<std::vector<ContinuationScore>>& scores);

}  // namespace brigade
