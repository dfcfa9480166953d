// brigade evaluate --run DIR (--text FILE | --dataset PREFIX | --task FILE ...)
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data/token_dataset.h"
#include "brigade/data/training_data.h"
#include "brigade/data/whole_text.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/tasks.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/files/read_once.h"
#include "brigade/generate/inference_config.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/train/start_world.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kNatsPerBit = 0.69314718055994530942;

// On all ranks. Of a pipe it is rank 0 that reads.
std::string shared_text(const fs::path& path, const ProcessMesh& mesh) {
  if (!is_read_once(path))
    return read_whole_text(path);
  return Agreement(*mesh.world())
      .text_of(0, mesh.rank() == 0 ? read_whole_text(path) : std::string());
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
    if (prints() && arguments_.as_json)
      fmt::print(
          "{}\n", results_.dump(2, ' ', false, json::error_handler_t::replace));
  }

 private:
  bool prints() const { return mesh_.rank() == 0; }

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

  TokenLoss loss_of(
      const std::string& name,
      int64_t windows,
      const std::function<void(int64_t, std::span<int64_t>)>& read) {
    ProgressBar bar("evaluating " + name, windows, visible_);
    return scorer_.loss(
        windows, length_, arguments_.rows, read, [&](int64_t done) {
          bar.draw(done, "");
        });
  }

  // `bytes` of the text; 0: not known.
  void report(const std::string& name, const TokenLoss& loss, size_t bytes) {
    if (!prints())
      return;
    json result = {
        {"tokens", loss.tokens},
        {"loss", loss.mean()},
        {"perplexity", std::exp(loss.mean())}};
    std::string text = fmt::format(
        "{}: loss {:.4f}, perplexity {:.3f} over {} tokens",
        name,
        loss.mean(),
        std::exp(loss.mean()),
        loss.tokens);
    if (bytes > 0) {
      const double bits = loss.nats / kNatsPerBit / static_cast<double>(bytes);
      result["bits_per_byte"] = bits;
      text += fmt::format(", {:.4f} bits per byte", bits);
    }
    results_[name] = std::move(result);
    if (!arguments_.as_json)
      fmt::print("{}\n", text);
  }

  void evaluate_text() {
    const auto tokenizer = stored_.open_tokenizer(arguments_.tokenizer);
    auto ids = tokenizer->encode(shared_text(arguments_.text, mesh_));
    if (arguments_.most_tokens > 0 &&
        ids.size() > static_cast<size_t>(arguments_.most_tokens))
      ids.resize(static_cast<size_t>(arguments_.most_tokens));
    if (ids.size() < 2)
      throw DataError(fmt::format(
          "[evaluate] '{}' has fewer than two tokens",
          arguments_.text.string()));
    const auto count = static_cast<int64_t>(ids.size());
    const TokenLoss loss = loss_of(
        arguments_.text.string(),
        (count - 1 + length_ - 1) / length_,
        [&](int64_t window, std::span<int64_t> into) {
          for (size_t i = 0; i < into.size(); ++i) {
            const int64_t at = window * length_ + static_cast<int64_t>(i);
            into[i] = at < count ? ids[static_cast<size_t>(at)] : -1;
          }
        });
    report(arguments_.text.string(), loss, tokenizer->decode(ids).size());
  }

  void evaluate_dataset() {
    const TrainingData data = open_training_data(
        {.parts = {{.path = arguments_.dataset}},
         .seq_length = length_,
         .vocab_size = stored_.model().vocab_size});
    auto windows = static_cast<int64_t>(data.training->samples_per_epoch());
    if (arguments_.most_tokens > 0)
      windows = std::min(
          windows, std::max<int64_t>(1, arguments_.most_tokens / length_));
    const TokenLoss loss = loss_of(
        arguments_.dataset,
        windows,
        [&](int64_t window, std::span<int64_t> into) {
          data.training->read(static_cast<uint64_t>(window), into);
        });
    report(arguments_.dataset, loss, 0);
  }

  void evaluate_task(const fs::path& path) {
    const auto tokenizer = stored_.open_tokenizer(arguments_.tokenizer);
    const std::vector<TaskRequest> requests = read_task(path);
    std::vector<Continuations> tokens;
    for (const TaskRequest& request : requests)
      tokens.push_back(tokenize(request, *tokenizer));
    ProgressBar bar(
        "evaluating " + path.string(),
        static_cast<int64_t>(requests.size()),
        visible_);
    const auto scores = scorer_.score(
        tokens, positions(), [&](int64_t done) { bar.draw(done, ""); });
    bar.clear();
    if (!prints())
      return;
    const TaskResult rated = rate(requests, scores);
    results_[path.string()] = {
        {"requests", rated.requests},
        {"accuracy", rated.accuracy},
        {"accuracy_normalized", rated.normalized_accuracy},
        {"perplexity", rated.perplexity}};
    if (!arguments_.as_json)
      fmt::print(
          "{}: accuracy {:.4f}, by length {:.4f}, perplexity {:.3f} over {} "
          "requests\n",
          path.string(),
          rated.accuracy,
          rated.normalized_accuracy,
          rated.perplexity,
          rated.requests);
    if (!arguments_.scores.empty())
      write_scores(scores);
  }

  // One line per request, in the order of the tasks.
  void write_scores(const std::vector<std::vector<ContinuationScore>>& scores) {
    for (const auto& of_request : scores) {
      json line = json::array();
      for (const ContinuationScore& score : of_request)
        line.push_back(
            {{"log_likelihood", score.log_likelihood},
             {"is_greedy", score.is_greedy}});
      lines_ += line.dump() + "\n";
    }
    write_text_file(arguments_.scores, lines_);
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
  if (!arguments.scores.empty())
    check_writable(arguments.scores);
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
  if (launch.is_supervisor) {
    supervise_self(launch, {.threads_per_rank = {}, .reporting_rank = 0});
    return;
  }
  const auto mesh = start_world(config, launch.environment);
  const auto visible = mesh->rank() == 0 ? visible_on_stderr(launch.environment)
                                         : ProgressBar::Visible::kNo;
  RateBar bar(visible);
  stored.verify(*mesh->world(), [&](uint64_t done_bytes, uint64_t total_bytes) {
    bar.show("verifying the checkpoint", done_bytes, total_bytes);
  });
  bar.clear();
  Evaluation(arguments, stored, config, *mesh, visible).run();
}

}  // namespace brigade::cli
