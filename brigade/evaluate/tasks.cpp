#include "brigade/evaluate/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "brigade/base/error.h"
#include "brigade/data/whole_text.h"
#include "brigade/json/node.h"

namespace brigade {
namespace {

TaskRequest parse(const JsonNode& line) {
  TaskRequest request;
  request.context = line.at("context").string();
  const JsonNode choices = line.at("choices");
  for (size_t i = 0; i < choices.size(); ++i) {
    const JsonNode choice = choices.element(i);
    request.choices.push_back(choice.string());
    if (request.choices.back().empty())
      choice.fail("the choice is empty");
  }
  if (request.choices.empty())
    choices.fail("there is no choice");
  request.gold = static_cast<size_t>(line.at("gold").integer(
      0, static_cast<int64_t>(request.choices.size()) - 1));
  return request;
}

size_t likeliest(
    const std::vector<ContinuationScore>& scores,
    const std::vector<std::string>& choices,
    bool is_normalized) {
  size_t best = 0;
  double best_score = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double score =
        scores[i].log_likelihood /
        (is_normalized ? static_cast<double>(choices[i].size()) : 1.0);
    if (i == 0 || score > best_score) {
      best = i;
      best_score = score;
    }
  }
  return best;
}

}  // namespace

std::vector<TaskRequest> read_task(const std::filesystem::path& path) {
  std::istringstream file(read_whole_text(path));
  std::vector<TaskRequest> requests;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const JsonDocument document(
        line, {.module = "task", .file = path.string(), .first_line = number});
    requests.push_back(parse(document.root()));
  }
  if (requests.empty())
    throw DataError(fmt::format("[task] '{}' holds no request", path.string()));
  return requests;
}

Continuations tokenize(const TaskRequest& request, const Tokenizer& tokenizer) {
  std::string context = request.context;
  const size_t kept = context.find_last_not_of(" \t\n\r") + 1;
  const std::string spaces = context.substr(kept);
  context.resize(kept);
  Continuations result;
  const auto encode = [&](const std::string& text) {
    const auto ids = tokenizer.encode(text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  result.context = encode(context);
  const size_t shared = result.context.size();
  for (const std::string& choice : request.choices) {
    const auto whole = encode(context + spaces + choice);
    if (whole.size() <= shared)
      throw DataError(fmt::format(
          "[task] the choice '{}' adds no token to its context", choice));
    result.choices.emplace_back(
        whole.begin() + static_cast<std::ptrdiff_t>(shared), whole.end());
  }
  if (result.context.empty()) {
    const auto start =
        tokenizer.eos_id() ? tokenizer.eos_id() : tokenizer.bos_id();
    if (!start)
      throw DataError(
          "[task] a context is empty, and the tokenizer has no token that "
          "begins a text");
    result.context = {*start};
  }
  return result;
}

TaskResult rate(
    const std::vector<TaskRequest>& requests,
    const std::vector<std::vector<ContinuationScore>>& scores) {
  TaskResult result;
  double nats = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const TaskRequest& request = requests[r];
    const auto& of_request = scores[r];
    if (request.choices.size() == 1) {
      const double is_right = of_request[0].is_greedy ? 1 : 0;
      result.accuracy += is_right;
      result.normalized_accuracy += is_right;
    } else {
      result.accuracy +=
          likeliest(of_request, request.choices, false) == request.gold ? 1 : 0;
      result.normalized_accuracy +=
          likeliest(of_request, request.choices, true) == request.gold ? 1 : 0;
    }
    nats -= of_request[request.gold].log_likelihood;
  }
  result.requests = static_cast<int64_t>(requests.size());
  const auto count = static_cast<double>(requests.size());
  result.accuracy /= count;
  result.normalized_accuracy /= count;
  result.perplexity = std::exp(nats / count);
  return result;
}

}  // namespace brigade
