// brigade evaluate --dataset PREFIX
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/data/dataset_info.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/token_dataset.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/evaluate/teacher_log_probs.h"
#include "brigade/files/output_path.h"
#include "brigade/metrics/progress_bar.h"
#include "cli/evaluation.h"

namespace brigade::cli {

void Evaluation::evaluate_dataset() {
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

TokenLoss Evaluation::loss_of_windows(const TokenDataset& data) {
  return loss_of(
      arguments_.dataset,
      most_of(data.num_tokens()),
      [&](int64_t begin, Tokens inputs, Tokens targets) {
        data.read(static_cast<uint64_t>(begin), inputs);
        data.read_targets(static_cast<uint64_t>(begin) + 1, targets);
      });
}

TokenLoss Evaluation::loss_of_documents(const TokenDataset& data) {
  const std::string advice =
      arguments_.by_document
          ? "leave --by-document out and evaluate windows with --seq-length"
          : "evaluate windows with --seq-length";
  if (arguments_.gives_rows)
    throw ConfigError(fmt::format(
        "--batch {}: the documents of '{}' are evaluated whole, one by one; "
        "leave it out, or {}",
        arguments_.rows,
        arguments_.dataset,
        advice));
  const DatasetDocuments documents = documents_of(
      data,
      /*least=*/0,
      arguments_.by_document
          ? advice
          : "prepare conversations with --max-tokens, or " + advice);
  const std::vector<double> nats =
      nats_of(arguments_.dataset, documents.windows);
  TokenLoss loss{.nats = 0, .tokens = documents.counting_tokens};
  for (size_t d = 0; d < nats.size(); ++d) {
    check_finite(-nats[d], arguments_.dataset, fmt::format("document {}", d));
    loss.nats += nats[d];
  }
  return loss;
}

std::string Evaluation::model_name() const {
  const std::string base = stored_.directory().string();
  const std::string adapter = arguments_.model.adapter.string();
  return adapter.empty() ? base : base + " with the adapter " + adapter;
}

void Evaluation::write_top_k(const TokenDataset& data, int64_t tokens) {
  const int64_t vocabulary = std::min(tokens, stored_.model().vocab_size);
  if (arguments_.most_tokens > 0)
    throw ConfigError(fmt::format(
        "--max-tokens {} with --top-k, which is of the whole dataset; leave "
        "it out",
        arguments_.most_tokens));
  if (arguments_.k > vocabulary)
    throw ConfigError(fmt::format(
        "--k {} is more than the vocabulary of {}", arguments_.k, vocabulary));
  std::optional<ProgressBar> bar;
  const TeacherLogProbs written = write_teacher_log_probs(
      scorer_,
      data,
      {.path = link_target(arguments_.top_k),
       .info =
           {.k = arguments_.k,
            .vocabulary = vocabulary,
            .window_length = arguments_.by_document ? 0 : length_,
            .model = model_name()},
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

Evaluation::DatasetDocuments Evaluation::documents_of(
    const TokenDataset& data,
    uint64_t least,
    const std::string& advice) const {
  const DocumentIndex& documents = data.documents();
  const auto last = static_cast<uint64_t>(most_of(data.num_tokens()));
  DatasetDocuments result;
  for (uint64_t d = 0; d < documents.size() && documents.begin(d) <= last;
       ++d) {
    const uint64_t begin = documents.begin(d);
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
    ScoredWindow& kept = result.windows.emplace_back();
    if (size < 2)
      continue;
    // All ranks read it, so that what cannot be read ends them all.
    ScoredWindow window;
    window.tokens.resize(size);
    data.read(begin, window.tokens);
    window.targets.resize(size - 1);
    data.read_targets(begin + 1, window.targets);
    const int64_t counting = std::ssize(window.targets) -
                             std::ranges::count(window.targets, kNoTarget);
    result.counting_tokens += counting;
    if (counting > 0 && scorer_.is_mine(static_cast<int64_t>(d)))
      kept = std::move(window);
  }
  return result;
}

void Evaluation::refuse_options_of_windows() const {
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

void Evaluation::evaluate_pairs(const TokenDataset& data, uint64_t pairs) {
  refuse_options_of_windows();
  const std::vector<ScoredWindow> windows =
      documents_of(data, /*least=*/2, "prepare the pairs with --max-tokens")
          .windows;
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
    write_reference(data, {model_name(), log_probs});
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

}  // namespace brigade::cli
