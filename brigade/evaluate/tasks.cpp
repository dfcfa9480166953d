#include "brigade/evaluate/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <sstream>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/data/whole_text.h"
#include "brigade/files/read_once.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

TaskRequest parse_request(const JsonNode& line) {
  TaskRequest request;
  request.context = line.at("context").string();
  if (const auto delimiter = line.find("target_delimiter"))
    request.target_delimiter = delimiter->string();
  const JsonNode choices = line.at("choices");
  for (const JsonNode& choice : choices.elements()) {
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

void parse(const JsonNode& line, Task& task) {
  const auto text = line.find("choices") ? std::nullopt : line.find("text");
  if (text ? !task.requests.empty() : !task.texts.empty())
    line.fail(
        "one file holds either texts ({\"text\"}) or requests ({\"context\", "
        "\"choices\", \"gold\"}), not both");
  if (text)
    task.texts.push_back(text->string());
  else
    task.requests.push_back(parse_request(line));
}

// As the harness counts: len(re.split(r"\s+", text)).
int64_t count_words(const std::string& text) {
  int64_t words = 1;
  bool is_in_space = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const bool is_space = is_python_space(utf8_code_point(text, at));
    if (is_space && !is_in_space)
      ++words;
    is_in_space = is_space;
  }
  return words;
}

enum class LengthNorm { kNone, kCharacters };

// The first of several that are as likely.
size_t likeliest(
    const std::vector<ContinuationScore>& scores,
    const std::vector<std::string>& choices,
    LengthNorm norm) {
  size_t best = 0;
  double best_score = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double score =
        scores[i].log_likelihood /
        (norm == LengthNorm::kCharacters
             ? static_cast<double>(count_characters(choices[i]))
             : 1.0);
    if (i == 0 || score > best_score) {
      best = i;
      best_score = score;
    }
  }
  return best;
}

}  // namespace

Task read_task(const std::filesystem::path& path) {
  std::istringstream file(read_whole_text(path));
  Task task;
  size_t number = 0;
  size_t first_line = 0;  // with a request
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos)
      continue;
    const JsonDocument document(
        line,
        {.module = "task", .file = input_name(path), .first_line = number});
    parse(document.root(), task);
    first_line = first_line == 0 ? number : first_line;
  }
  if (task.requests.empty() && task.texts.empty())
    throw DataError(
        fmt::format("[task] '{}' holds no request", input_name(path)));
  const auto is_empty = [](const std::string& text) { return text.empty(); };
  if (!task.texts.empty() &&
      std::all_of(task.texts.begin(), task.texts.end(), is_empty))
    throw DataError(fmt::format(
        "[task] '{}': its texts are empty, from line {} on",
        input_name(path),
        first_line));
  return task;
}

TaskResult rate(
    const std::vector<TaskRequest>& requests,
    const std::vector<std::vector<ContinuationScore>>& scores) {
  const bool has_choices =
      std::any_of(requests.begin(), requests.end(), [](const auto& request) {
        return request.choices.size() > 1;
      });
  const auto count = static_cast<double>(requests.size());
  int64_t right = 0;
  int64_t normalized_right = 0;
  double nats = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const TaskRequest& request = requests[r];
    const std::vector<ContinuationScore>& of_request = scores[r];
    const auto is_right = [&](LengthNorm norm) {
      return request.choices.size() == 1
                 ? of_request[0].is_greedy
                 : likeliest(of_request, request.choices, norm) == request.gold;
    };
    right += is_right(LengthNorm::kNone) ? 1 : 0;
    normalized_right += is_right(LengthNorm::kCharacters) ? 1 : 0;
    nats -= of_request[request.gold].log_likelihood;
  }
  TaskResult result{
      .requests = static_cast<int64_t>(requests.size()),
      .accuracy = static_cast<double>(right) / count};
  if (has_choices)
    result.normalized_accuracy = static_cast<double>(normalized_right) / count;
  else
    result.perplexity = std::exp(nats / count);
  return result;
}

TextResult rate_texts(
    const std::vector<std::string>& texts,
    const std::vector<double>& nats) {
  size_t bytes = 0;
  int64_t words = 0;
  for (const std::string& text : texts) {
    bytes += text.size();
    words += count_words(text);
  }
  if (bytes == 0)
    throw DataError("[task] all texts are empty");
  const double all = std::accumulate(nats.begin(), nats.end(), 0.0);
  const double per_byte = all / static_cast<double>(bytes);
  return {
      .texts = static_cast<int64_t>(texts.size()),
      .word_perplexity = std::exp(all / static_cast<double>(words)),
      .byte_perplexity = std::exp(per_byte),
      .bits_per_byte = per_byte / std::numbers::ln2};
}

}  // namespace brigade
