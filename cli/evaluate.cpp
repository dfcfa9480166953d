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
#include "brigade/data/dataset_info.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/teacher_file.h"
#include "brigade/data/token_dataset.h"
#include "brigade/data/whole_text.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/task_tokens.h"
#include "brigade/evaluate/tasks.h"
#include "brigade/evaluate/teacher_log_probs.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/files/read_once.h"
#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_tokens.h"
#include "brigade/json/parse.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/model_spec/model_warnings.h"
#include "brigade/train/start_world.h"
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

// Throws NumericError for a log-probability of `part` of text or dataset
// `name`.
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

class Evaluation {
 public:
  Evaluation(
      const EvaluateArguments& arguments,
      const StoredModel& stored,
      const TrainConfig& config,
      const ProcessMesh& mesh,
      ProgressBar::Visible visible)
      : arguments_(arguments),
        stored_(stored),
        mesh_(mesh),
        visible_(visible),
        scorer_(stored, config, mesh),
        length_(window_length()) {}

  void run() {
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

 private:
  bool prints() const { return mesh_.rank() == 0; }

  // A device or a pipe cannot be written again after each task.
  bool has_scores_at_end() const {
    return !arguments_.scores.empty() && is_written_in_place(arguments_.scores);
  }

  int64_t positions() const { return stored_.model().max_position_embeddings; }

  int64_t window_length() const {
    if (arguments_.seq_length == 0)
      return std::min<int64_t>(positions(), 2048);
    if (arguments_.seq_length > positions())
      throw ConfigError(fmt::format(
          "--seq-length {} is more than the {} positions of the model",
          arguments_.seq_length,
          positions()));
    return arguments_.seq_length;
  }

  // The harness's max_length: all positions, unless something else is asked.
  int64_t task_window() const {
    return arguments_.seq_length == 0 ? positions() : length_;
  }

  int64_t most_of(uint64_t tokens) const {
    const auto all = static_cast<int64_t>(tokens);
    return arguments_.most_tokens > 0 ? std::min(all, arguments_.most_tokens)
                                      : all;
  }

  // The loss of tokens [0, count), all but the first of which are predicted, in
  // windows that follow one another. read(begin, inputs, targets) fills in the
  // tokens from `begin` on, and as many targets from begin + 1 on.
  using Tokens = std::span<int64_t>;
  using Read = std::function<void(int64_t begin, Tokens, Tokens)>;
  TokenLoss loss_of(const std::string& name, int64_t count, const Read& read) {
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

  // `bytes` of the text; 0: not known.
  void report(const std::string& name, const TokenLoss& loss, size_t bytes) {
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

  void evaluate_text() {
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

  void evaluate_dataset() {
    const TokenDataset data = TokenDataset::open(
        arguments_.dataset, {.vocab_size = stored_.model().vocab_size});
    const auto info = read_dataset_info(dataset_prefix(arguments_.dataset));
    if (info && info->num_pairs > 0) {
      evaluate_pairs(data, info->num_pairs);
      return;
    }
    if (arguments_.writes_reference)
      throw ConfigError(fmt::format(
          "--write-reference: '{}' holds no pairs of a chosen and a rejected "
          "answer",
          arguments_.dataset));
    if (!arguments_.top_k.empty()) {
      write_top_k(data, info ? info->vocab_size : stored_.model().vocab_size);
      return;
    }
    // A window would show a conversation what stands before it.
    const bool reads_documents =
        arguments_.by_document ||
        (data.counting_tokens() && arguments_.seq_length == 0);
    const TokenLoss loss =
        reads_documents ? loss_of_documents(data) : loss_of_windows(data);
    if (loss.tokens == 0)
      throw DataError(fmt::format(
          "[evaluate] of the {} tokens of '{}' none counts in the loss{}",
          most_of(data.num_tokens()),
          arguments_.dataset,
          data.counting_tokens() ? ", by the .mask file beside them" : ""));
    report(arguments_.dataset, loss, 0);
  }

  TokenLoss loss_of_windows(const TokenDataset& data) {
    return loss_of(
        arguments_.dataset,
        most_of(data.num_tokens()),
        [&](int64_t begin, Tokens inputs, Tokens targets) {
          data.read(static_cast<uint64_t>(begin), inputs);
          data.read_targets(static_cast<uint64_t>(begin) + 1, targets);
        });
  }

  TokenLoss loss_of_documents(const TokenDataset& data) {
    if (arguments_.gives_rows)
      throw ConfigError(fmt::format(
          "--batch {}: the documents of '{}' are evaluated whole, one by one; "
          "leave it out, or evaluate windows with --seq-length",
          arguments_.rows,
          arguments_.dataset));
    const std::vector<ScoredWindow> documents = documents_of(
        data,
        /*least=*/0,
        "prepare conversations with --max-tokens, or evaluate windows with "
        "--seq-length");
    const std::vector<double> nats = nats_of(arguments_.dataset, documents);
    TokenLoss loss;
    for (size_t d = 0; d < nats.size(); ++d) {
      check_finite(-nats[d], arguments_.dataset, fmt::format("document {}", d));
      loss.nats += nats[d];
      const auto& targets = documents[d].targets;
      loss.tokens +=
          std::ssize(targets) - std::ranges::count(targets, kNoTarget);
    }
    return loss;
  }

  // Writes the likeliest of `tokens` tokens, which the dataset's tokenizer has.
  void write_top_k(const TokenDataset& data, int64_t tokens) {
    const int64_t vocabulary = std::min(tokens, stored_.model().vocab_size);
    if (arguments_.most_tokens > 0)
      throw ConfigError(fmt::format(
          "--max-tokens {} with --top-k, which is of the whole dataset; leave "
          "it out",
          arguments_.most_tokens));
    if (arguments_.k > vocabulary)
      throw ConfigError(fmt::format(
          "--k {} is more than the vocabulary of {}",
          arguments_.k,
          vocabulary));
    std::optional<ProgressBar> bar;
    const TeacherLogProbs written = write_teacher_log_probs(
        scorer_,
        data,
        {.path = link_target(arguments_.top_k),
         .info =
             {.k = arguments_.k,
              .vocabulary = vocabulary,
              .window_length = arguments_.by_document ? 0 : length_,
              .model = stored_.directory().string()},
         .positions = positions(),
         .rows = arguments_.rows},
        [&](int64_t done, int64_t count) {
          if (!bar)
            bar.emplace("evaluating " + arguments_.dataset, count, visible_);
          bar->draw(done, "");
        });
    bar->clear();
    print(
        arguments_.dataset,
        {{"tokens", written.tokens},
         {"k", arguments_.k},
         {"probability", written.probability}},
        fmt::format(
            "{}: the {} likeliest tokens in the place of {} have {:.4f} of the "
            "probability; wrote {}",
            arguments_.dataset,
            arguments_.k,
            written.tokens,
            written.probability,
            arguments_.top_k.string()));
  }

  // Each document of the dataset as far as --max-tokens reaches, with a loss on
  // what counts; empty where nothing is predicted. `advice`: what to do where
  // one has less than `least` tokens, or more than the model can score.
  std::vector<ScoredWindow> documents_of(
      const TokenDataset& data,
      uint64_t least,
      const char* advice) const {
    const DocumentIndex& documents = data.documents();
    const auto last = static_cast<uint64_t>(most_of(data.num_tokens()));
    std::vector<ScoredWindow> windows(documents.size());
    for (uint64_t d = 0; d < documents.size(); ++d) {
      const uint64_t begin = std::min(documents.begin(d), last);
      const uint64_t size = std::min(documents.begin(d + 1), last) - begin;
      if (size < least || size > static_cast<uint64_t>(positions()) + 1)
        throw DataError(fmt::format(
            "[evaluate] '{}': document {} has {} tokens, but the model can "
            "score 2 to {}; {}",
            arguments_.dataset,
            d,
            size,
            positions() + 1,
            advice));
      if (size < 2)
        continue;
      ScoredWindow& window = windows[d];
      window.tokens.resize(size);
      data.read(begin, window.tokens);
      window.targets.resize(size - 1);
      data.read_targets(begin + 1, window.targets);
    }
    return windows;
  }

  // Answers are evaluated whole, one by one.
  void refuse_options_of_windows() const {
    std::vector<std::string> problems;
    const auto refuse = [&](const std::string& option) {
      problems.push_back(fmt::format(
          "{}: '{}' is a dataset of pairs, whose answers are evaluated whole, "
          "one by one; leave it out",
          option,
          arguments_.dataset));
    };
    if (arguments_.most_tokens > 0)
      refuse(fmt::format("--max-tokens {}", arguments_.most_tokens));
    if (arguments_.seq_length > 0)
      refuse(fmt::format("--seq-length {}", arguments_.seq_length));
    if (arguments_.gives_rows)
      refuse(fmt::format("--batch {}", arguments_.rows));
    if (!arguments_.top_k.empty())
      refuse("--top-k");
    if (!problems.empty())
      throw ConfigError(problems);
  }

  // The loss of each window, with a bar.
  std::vector<double> nats_of(
      const std::string& name,
      const std::vector<ScoredWindow>& windows) {
    ProgressBar bar(
        "evaluating " + name, static_cast<int64_t>(windows.size()), visible_);
    return scorer_.nats(windows, [&](int64_t done) { bar.draw(done, ""); });
  }

  void evaluate_pairs(const TokenDataset& data, uint64_t pairs) {
    refuse_options_of_windows();
    const std::vector<ScoredWindow> windows =
        documents_of(data, /*least=*/2, "prepare the pairs with --max-tokens");
    std::vector<double> log_probs = nats_of(arguments_.dataset, windows);
    double chosen = 0;
    double rejected = 0;
    double right = 0;
    for (size_t d = 0; d < log_probs.size(); ++d) {
      log_probs[d] = -log_probs[d];
      check_finite(
          log_probs[d], arguments_.dataset, fmt::format("document {}", d));
      (d % 2 == 0 ? chosen : rejected) += log_probs[d];
      if (d % 2 == 1 && log_probs[d - 1] > log_probs[d])
        ++right;
    }
    const auto count = static_cast<double>(pairs);
    if (arguments_.writes_reference && prints())
      write_reference(data, {stored_.directory().string(), log_probs});
    print(
        arguments_.dataset,
        {{"pairs", pairs},
         {"chosen_log_prob", chosen / count},
         {"rejected_log_prob", rejected / count},
         {"accuracy", right / count}},
        fmt::format(
            "{}: the chosen answer is the likelier one in {:.4f} of {} pairs; "
            "log-probabilities {:.4f} and {:.4f}",
            arguments_.dataset,
            right / count,
            pairs,
            chosen / count,
            rejected / count));
  }

  void evaluate_task(const fs::path& path) {
    const auto tokenizer = stored_.open_tokenizer(arguments_.tokenizer);
    const Task task = read_task(path);
    if (task.texts.empty())
      evaluate_requests(input_name(path), task.requests, *tokenizer);
    else
      evaluate_texts(input_name(path), task.texts, *tokenizer);
    if (prints() && !arguments_.scores.empty() && !has_scores_at_end())
      write_text_file(arguments_.scores, lines_);
  }

  void evaluate_requests(
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

  void evaluate_texts(
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

  void print(const std::string& name, json result, const std::string& line) {
    results_[name] = std::move(result);
    if (prints() && !arguments_.as_json)
      fmt::print("{}\n", line);
  }

  // One line per request, in the order of the tasks.
  void add_lines(const std::vector<std::vector<ContinuationScore>>& scores) {
    for (const auto& of_request : scores) {
      json line = json::array();
      for (const ContinuationScore& score : of_request)
        line.push_back(
            {{"log_likelihood", score.log_likelihood},
             {"is_greedy", score.is_greedy}});
      lines_ += line.dump() + "\n";
    }
  }

  const EvaluateArguments& arguments_;
  const StoredModel& stored_;
  const ProcessMesh& mesh_;
  ProgressBar::Visible visible_;
  Scorer scorer_;
  int64_t length_;
  json results_ = json::object();
  std::string lines_;
};

}  // namespace

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
