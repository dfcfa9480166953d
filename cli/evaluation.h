// What `brigade evaluate` does on one rank: losses of texts and tasks
// (evaluate.cpp) and of datasets (evaluate_dataset.cpp), and their results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/token_dataset.h"
#include "brigade/data/token_loss.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/tasks.h"
#include "brigade/generate/stored_model.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/tokenizer/tokenizer.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

// Throws NumericError for a log-probability of `part` of text or dataset
// `name`.
void check_finite(
    double value,
    const std::string& name,
    const std::string& part);

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

  void run();

 private:
  bool prints() const { return mesh_.rank() == 0; }

  // A device or a pipe cannot be written again after each task.
  bool has_scores_at_end() const;

  int64_t positions() const { return stored_.model().max_position_embeddings; }

  int64_t window_length() const;

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
  TokenLoss loss_of(const std::string& name, int64_t count, const Read& read);

  // The loss of each window, with a bar.
  std::vector<double> nats_of(
      const std::string& name,
      const std::vector<ScoredWindow>& windows);

  // `bytes` of the text; 0: not known.
  void report(const std::string& name, const TokenLoss& loss, size_t bytes);
  void print(
      const std::string& name,
      nlohmann::json result,
      const std::string& line);

  void evaluate_text();

  void evaluate_dataset();
  TokenLoss loss_of_windows(const TokenDataset& data);
  TokenLoss loss_of_documents(const TokenDataset& data);
  // Whose numbers a file holds, for people.
  std::string model_name() const;
  // Writes the likeliest of `tokens` tokens, which the dataset's tokenizer has.
  void write_top_k(const TokenDataset& data, int64_t tokens);
  // Those of a dataset as far as --max-tokens reaches, with a loss on what
  // counts.
  struct DatasetDocuments {
    // One each; empty where nothing counts or another replica scores it.
    std::vector<ScoredWindow> windows;
    int64_t counting_tokens = 0;  // of all replicas
  };
  // `advice`: what to do where one has less than `least` tokens, or more than
  // the model can score.
  DatasetDocuments documents_of(
      const TokenDataset& data,
      uint64_t least,
      const std::string& advice) const;
  // Answers are evaluated whole, one by one.
  void refuse_options_of_windows() const;
  void evaluate_pairs(const TokenDataset& data, uint64_t pairs);

  void evaluate_task(const std::filesystem::path& path);
  void evaluate_requests(
      const std::string& name,
      const std::vector<TaskRequest>& requests,
      const Tokenizer& tokenizer);
  void evaluate_texts(
      const std::string& name,
      const std::vector<std::string>& texts,
      const Tokenizer& tokenizer);
  // One line per request, in the order of the tasks.
  void add_lines(const std::vector<std::vector<ContinuationScore>>& scores);

  const EvaluateArguments& arguments_;
  const StoredModel& stored_;
  const ProcessMesh& mesh_;
  ProgressBar::Visible visible_;
  Scorer scorer_;
  int64_t length_;
  nlohmann::json results_ = nlohmann::json::object();
  std::string lines_;
};

}  // namespace brigade::cli
