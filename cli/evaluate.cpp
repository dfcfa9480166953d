// brigade evaluate --run DIR (--text FILE | --dataset PREFIX | --task FILE ...)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/teacher_file.h"
#include "brigade/data/whole_text.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/task_tokens.h"
#include "brigade/evaluate/tasks.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/files/read_once.h"
#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_tokens.h"
#include "brigade/json/parse.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/model_spec/model_warnings.h"
#include "brigade/train/start_world.h"
#include "cli/evaluation.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/standard_streams.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kNatsPerBit = std::numbers::ln2;

// The text on all ranks; only rank 0 reads a pipe.
std::string shared_text(const fs::path& path, const ProcessMesh& mesh) {
  if (!is_read_once(path))
    return read_whole_text(path);
  return Agreement(*mesh.world())
      .text_of(0, mesh.rank() == 0 ? read_whole_text(path) : std::string());
}

// --json names a result by the file or dataset that was evaluated. Throws
// ConfigError where two have the same name.
void check_names(const EvaluateArguments& arguments) {
  std::set<std::string> names;
  const auto add = [&](const std::string& name) {
    if (!name.empty() && !names.insert(name).second)
      throw ConfigError(fmt::format(
          "[evaluate] --json: two results would have the name '{}'; leave one "
          "out",
          name));
  };
  if (!arguments.text.empty())
    add(input_name(arguments.text));
  add(arguments.dataset);
  for (const fs::path& task : arguments.tasks)
    add(input_name(task));
}

}  // namespace

void check_finite(
    double value,
    const std::string& name,
    const std::string& part) {
  if (!std::isfinite(value))
    throw NumericError(fmt::format(
        "[evaluate] '{}': the log-probability of {} is not finite: a weight of "
        "the model is not, or what it computes overflows; evaluate an earlier "
        "checkpoint",
        name,
        part));
}

void Evaluation::run() {
  if (!arguments_.text.empty())
    evaluate_text();
  if (!arguments_.dataset.empty())
    evaluate_dataset();
  for (const fs::path& task : arguments_.tasks)
    evaluate_task(task);
  if (prints() && has_scores_at_end())
    write_text_file(arguments_.scores, lines_);
  if (prints() && arguments_.as_json)
    fmt::print("{}\n", json_to_text(results_, 2));
}

bool Evaluation::has_scores_at_end() const {
  return !arguments_.scores.empty() && is_written_in_place(arguments_.scores);
}

int64_t Evaluation::window_length() const {
  if (arguments_.seq_length == 0)
    return std::min<int64_t>(positions(), 2048);
  if (arguments_.seq_length > positions())
    throw ConfigError(fmt::format(
        "--seq-length {} is more than the {} positions of the model",
        arguments_.seq_length,
        positions()));
  return arguments_.seq_length;
}

TokenLoss
Evaluation::loss_of(const std::string& name, int64_t count, const Read& read) {
  if (count < 2)
    throw DataError(
        fmt::format("[evaluate] '{}' has fewer than two tokens", name));
  const int64_t windows = (count - 1 + length_ - 1) / length_;
  ProgressBar bar("evaluating " + name, windows, visible_);
  return scorer_.loss(
      {.count = windows,
       .length = length_,
       .rows = arguments_.rows,
       .read =
           [&](int64_t window, Tokens inputs, Tokens targets) {
             const int64_t begin = window * length_;
             const auto there =
                 static_cast<size_t>(std::min(count - begin - 1, length_));
             read(begin, inputs.first(there), targets.first(there));
           },
       .name = name},
      [&](int64_t done) { bar.draw(done, ""); });
}

void Evaluation::report(
    const std::string& name,
    const TokenLoss& loss,
    size_t bytes) {
  json result = {
      {"tokens", loss.tokens},
      {"loss", loss.mean()},
      {"perplexity", std::exp(loss.mean())}};
  std::string line = fmt::format(
      "{}: loss {:.4f}, perplexity {:.3f} over {} tokens",
      name,
      loss.mean(),
      std::exp(loss.mean()),
      loss.tokens);
  if (bytes > 0) {
    const double bits = loss.nats / kNatsPerBit / static_cast<double>(bytes);
    result["bits_per_byte"] = bits;
    line += fmt::format(", {:.4f} bits per byte", bits);
  }
  print(name, std::move(result), line);
}

void Evaluation::evaluate_text() {
  const auto tokenizer = stored_.open_tokenizer(arguments_.tokenizer);
  const std::string text = shared_text(arguments_.text, mesh_);
  const std::vector<int64_t> ids = encode_text(*tokenizer, text);
  const int64_t count = most_of(ids.size());
  const TokenLoss loss = loss_of(
      input_name(arguments_.text),
      count,
      [&](int64_t begin, Tokens inputs, Tokens targets) {
        const auto first = ids.begin() + begin;
        std::copy_n(first, inputs.size(), inputs.begin());
        std::copy_n(first + 1, targets.size(), targets.begin());
      });
  const bool is_whole = count == static_cast<int64_t>(ids.size());
  report(input_name(arguments_.text), loss, is_whole ? text.size() : 0);
}

std::vector<double> Evaluation::nats_of(
    const std::string& name,
    const std::vector<ScoredWindow>& windows) {
  ProgressBar bar(
      "evaluating " + name, static_cast<int64_t>(windows.size()), visible_);
  return scorer_.nats(windows, [&](int64_t done) { bar.draw(done, ""); });
}

void Evaluation::evaluate_task(const fs::path& path) {
  const auto tokenizer = stored_.open_tokenizer(arguments_.tokenizer);
  const Task task = read_task(path);
  if (task.texts.empty())
    evaluate_requests(input_name(path), task.requests, *tokenizer);
  else
    evaluate_texts(input_name(path), task.texts, *tokenizer);
  if (prints() && !arguments_.scores.empty() && !has_scores_at_end())
    write_text_file(arguments_.scores, lines_);
}

void Evaluation::evaluate_requests(
    const std::string& name,
    const std::vector<TaskRequest>& requests,
    const Tokenizer& tokenizer) {
  std::vector<Continuations> tokens;
  for (const TaskRequest& request : requests)
    tokens.push_back(tokenize(request, tokenizer, task_window()));
  ProgressBar bar(
      "evaluating " + name, static_cast<int64_t>(requests.size()), visible_);
  const auto scores = scorer_.score(
      tokens, task_window(), [&](int64_t done) { bar.draw(done, ""); });
  bar.clear();
  for (size_t r = 0; r < scores.size(); ++r) {
    for (size_t c = 0; c < scores[r].size(); ++c)
      check_finite(
          scores[r][c].log_likelihood,
          name,
          fmt::format("choice {} of request {}", c, r));
  }
  add_lines(scores);
  const TaskResult rated = rate(requests, scores);
  json result = {{"requests", rated.requests}, {"accuracy", rated.accuracy}};
  std::string line = fmt::format("{}: accuracy {:.4f}", name, rated.accuracy);
  if (rated.normalized_accuracy) {
    result["accuracy_normalized"] = *rated.normalized_accuracy;
    line += fmt::format(", by length {:.4f}", *rated.normalized_accuracy);
  }
  if (rated.perplexity) {
    result["perplexity"] = *rated.perplexity;
    line += fmt::format(", perplexity {:.3f}", *rated.perplexity);
  }
  print(
      name,
      std::move(result),
      line + fmt::format(" over {} requests", rated.requests));
}

void Evaluation::evaluate_texts(
    const std::string& name,
    const std::vector<std::string>& texts,
    const Tokenizer& tokenizer) {
  std::vector<ScoredWindow> windows;
  std::vector<size_t> text_of;  // by window
  for (size_t i = 0; i < texts.size(); ++i) {
    for (ScoredWindow& window :
         rolling_windows(texts[i], tokenizer, task_window())) {
      windows.push_back(std::move(window));
      text_of.push_back(i);
    }
  }
  const std::vector<double> of_windows = nats_of(name, windows);
  std::vector<double> nats(texts.size(), 0.0);
  for (size_t w = 0; w < windows.size(); ++w) {
    check_finite(-of_windows[w], name, fmt::format("text {}", text_of[w]));
    nats[text_of[w]] += of_windows[w];
  }
  for (const double of_text : nats)
    lines_ +=
        json::array({json::object({{"log_likelihood", -of_text}})}).dump() +
        "\n";
  const TextResult rated = rate_texts(texts, nats);
  print(
      name,
      {{"texts", rated.texts},
       {"word_perplexity", rated.word_perplexity},
       {"byte_perplexity", rated.byte_perplexity},
       {"bits_per_byte", rated.bits_per_byte}},
      fmt::format(
          "{}: word perplexity {:.3f}, byte perplexity {:.4f}, {:.4f} bits "
          "per byte over {} texts",
          name,
          rated.word_perplexity,
          rated.byte_perplexity,
          rated.bits_per_byte,
          rated.texts));
}

void Evaluation::print(
    const std::string& name,
    json result,
    const std::string& line) {
  results_[name] = std::move(result);
  if (prints() && !arguments_.as_json)
    fmt::print("{}\n", line);
}

void Evaluation::add_lines(
    const std::vector<std::vector<ContinuationScore>>& scores) {
  for (const auto& of_request : scores) {
    json line = json::array();
    for (const ContinuationScore& score : of_request)
      line.push_back(
          {{"log_likelihood", score.log_likelihood},
           {"is_greedy", score.is_greedy}});
    lines_ += line.dump() + "\n";
  }
}

void evaluate(const EvaluateArguments& arguments) {
  if (arguments.text.empty() && arguments.dataset.empty() &&
      arguments.tasks.empty())
    throw ConfigError(
        "nothing to evaluate on; give --text, --dataset or --task");
  if (arguments.most_tokens == 1)
    throw ConfigError(
        "--max-tokens 1: nothing is before the first token, so it is not "
        "predicted; give 2 or more");
  if (arguments.as_json)
    check_names(arguments);
  if (!arguments.scores.empty())
    check_writable(arguments.scores, "[");
  if (!arguments.top_k.empty()) {
    if (is_written_in_place(arguments.top_k))
      throw ConfigError(fmt::format(
          "--top-k {}: a device or a pipe; give the name of a file",
          arguments.top_k.string()));
    check_writable(arguments.top_k, kTeacherMagic);
  }
  if (arguments.writes_reference)
    check_writable(reference_path(arguments.dataset));
  const Launch launch = read_launch(arguments.layout.nproc);
  for (const fs::path& task : arguments.tasks) {
    if (is_read_once(task) && launch.world_size > 1)
      throw ConfigError(fmt::format(
          "[evaluate] --task {} can be read by one rank only; give a file",
          task.string()));
  }
  if (!launch.is_supervisor)
    share_out_threads(launch.environment, std::nullopt);
  const StoredModel stored(arguments.model);
  const TrainConfig config = inference_config(
      stored, config_overrides(arguments.layout), launch.world_size);
  if (launch.is_supervisor)
    return supervise_self(launch);
  const auto mesh = start_world(config, launch.environment);
  const auto visible = mesh->rank() == 0 ? visible_on_stderr(launch.environment)
                                         : ProgressBar::Visible::kNo;
  if (mesh->rank() == 0) {
    for (const std::string& warning : model_warnings(stored.config()))
      note("warning: {}\n", warning);
  }
  RateBar bar(visible);
  stored.verify(*mesh->world(), bar.labelled("verifying the checkpoint"));
  bar.clear();
  Evaluation(arguments, stored, config, *mesh, visible).run();
}

}  // namespace brigade::cli
