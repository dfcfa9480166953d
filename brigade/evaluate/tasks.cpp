#include "brigade/evaluate/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

using nlohmann::json;

TaskRequest parse(const json& line) {
  TaskRequest request;
  request.context = line.at("context").get<std::string>();
  request.choices = line.at("choices").get<std::vector<std::string>>();
  request.gold = line.at("gold").get<size_t>();
  return request;
}

std::string problem_of(const TaskRequest& request) {
  if (request.choices.empty())
    return "\"choices\" is empty";
  if (request.gold >= request.choices.size())
    return fmt::format(
        "\"gold\" is {}, but there are {} choices, counted from 0",
        request.gold,
        request.choices.size());
  if (std::any_of(
          request.choices.begin(), request.choices.end(), [](const auto& text) {
            return text.empty();
          }))
    return "a choice is empty";
  return {};
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
  std::ifstream file(path);
  if (!file)
    throw DataError(fmt::format("[task] '{}' cannot be read", path.string()));
  std::vector<TaskRequest> requests;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    std::string problem;
    try {
      requests.push_back(parse(json::parse(line)));
      problem = problem_of(requests.back());
    } catch (const json::exception&) {
      problem =
          "expected an object with a text \"context\", a list of texts "
          "\"choices\" and a number \"gold\"";
    }
    if (!problem.empty())
      throw DataError(fmt::format(
          "[task] '{}' line {}: {}", path.string(), number, problem));
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
