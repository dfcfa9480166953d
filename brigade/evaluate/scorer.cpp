#include "brigade/evaluate/scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

void add_up(const torch::Tensor& values, const ProcessMesh& mesh) {
  mesh.world()->all_reduce(values)->wait_on_host();
}

int64_t longest(const std::vector<std::vector<int64_t>>& windows) {
  size_t length = 0;
  for (const auto& window : windows)
    length = std::max(length, window.size());
  return static_cast<int64_t>(length);
}

// Shorter ones are padded: no token sees what follows it.
torch::Tensor padded_rows(const std::vector<std::vector<int64_t>>& windows) {
  const auto rows = static_cast<int64_t>(windows.size());
  const auto ids = torch::zeros({rows, longest(windows)}, torch::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const auto& window = windows[static_cast<size_t>(row)];
    ids[row]
        .narrow(0, 0, static_cast<int64_t>(window.size()))
        .copy_(torch::tensor(window, torch::kLong));
  }
  return ids;
}

// Collective. first_bad: of the windows that this rank read at once and whose
// loss is not finite, the first one; infinity: it read none.
[[noreturn]] void fail_not_finite(
    const LossWindows& windows,
    double first_bad,
    const ProcessMesh& mesh) {
  const auto first = torch::tensor({-first_bad}, torch::kDouble);
  mesh.world()->all_reduce(first, ReduceOp::kMax)->wait_on_host();
  const auto begin = static_cast<int64_t>(-first.item<double>());
  throw NumericError(fmt::format(
      "[evaluate] '{}': the loss of windows {} to {} of {} tokens, counted "
      "from "
      "0, is not finite: a weight of the model is not, or what it computes "
      "overflows; evaluate an earlier checkpoint",
      windows.name,
      begin,
      std::min(begin + windows.rows, windows.count) - 1,
      windows.length));
}

// Tokens of the context before a choice that the model sees.
size_t seen_before(
    const Continuations& request,
    const std::vector<int64_t>& choice,
    int64_t most_tokens) {
  const size_t space = static_cast<size_t>(most_tokens) + 1 - choice.size();
  return std::min(space, request.context.size());
}

// Those that score() makes for it: one for the context of a choice, unless the
// choice before it saw as much, and one for each of its tokens but the last.
int64_t forwards_for(const Continuations& request, int64_t most_tokens) {
  int64_t forwards = 0;
  size_t seen = 0;
  for (const std::vector<int64_t>& choice : request.choices) {
    const size_t kept = seen_before(request, choice, most_tokens);
    forwards += static_cast<int64_t>(choice.size()) - (kept == seen ? 1 : 0);
    seen = kept;
  }
  return forwards;
}

template <typename T>
std::vector<T> as_vector(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.flatten();
  const auto values = flat.accessor<T, 1>();
  std::vector<T> result;
  result.reserve(static_cast<size_t>(flat.numel()));
  for (int64_t i = 0; i < flat.numel(); ++i)
    result.push_back(values[i]);
  return result;
}

}  // namespace

Scorer::Scorer(
    const StoredModel& stored,
    const TrainConfig& config,
    const ProcessMesh& mesh)
    : mesh_(mesh), model_(stored.load(config, mesh)) {}

void Scorer::keep_up(int64_t made, int64_t most) {
  for (; mesh_.dims().ep > 1 && made < most; ++made)
    hidden_of(torch::zeros({1, 1}, torch::kLong));
}

torch::Tensor Scorer::hidden_of(const torch::Tensor& ids) {
  return through_stages(*model_, mesh_, ids, [&](const torch::Tensor& input) {
    return model_->hidden(
        {.ids = ids, .targets = {}, .document_starts = {}},
        input,
        torch::arange(ids.size(1)));
  });
}

double Scorer::loss_of(const torch::Tensor& ids, const torch::Tensor& targets) {
  const torch::NoGradGuard no_grad;
  const auto loss =
      through_stages(*model_, mesh_, ids, [&](const torch::Tensor& input) {
        return model_->forward(
            {.ids = ids, .targets = targets, .document_starts = {}},
            input,
            torch::arange(ids.size(1)));
      });
  return loss.defined() ? loss.item<double>() : 0;
}

namespace {

std::span<int64_t> row_of(const torch::Tensor& tokens, int64_t row) {
  int64_t& first = tokens.accessor<int64_t, 2>()[row][0];
  return {&first, static_cast<size_t>(tokens.size(1))};
}

// What the rank of a whole model could not read, all say.
void throw_if_unread(const std::string& problem, const ProcessMesh& mesh) {
  for (const std::string& text : Agreement(*mesh.world()).texts(problem)) {
    if (!text.empty())
      throw DataError(text);
  }
}

}  // namespace

TokenLoss Scorer::loss(
    const LossWindows& windows,
    const std::function<void(int64_t)>& progress) {
  TokenLoss mine;
  int64_t forwards = 0;
  double first_bad = std::numeric_limits<double>::infinity();
  std::string problem;
  for (int64_t first = 0; first < windows.count; first += windows.rows) {
    progress(first);
    if (!is_mine(first / windows.rows))
      continue;
    const int64_t count = std::min(windows.rows, windows.count - first);
    const auto ids = torch::zeros({count, windows.length}, torch::kLong);
    const auto targets = torch::full_like(ids, kNoTarget);
    try {
      for (int64_t row = 0; row < count; ++row)
        windows.read(first + row, row_of(ids, row), row_of(targets, row));
    } catch (const DataError& error) {
      // Others of a divided model, whose files may be whole, wait in it.
      if (mesh_.model()->size() > 1)
        throw;
      problem = error.what();
      break;
    }
    const double nats = loss_of(ids, targets);
    ++forwards;
    if (counts()) {
      mine.nats += nats;
      mine.tokens += (targets != kNoTarget).sum().item<int64_t>();
      if (!std::isfinite(nats))
        first_bad = std::min(first_bad, static_cast<double>(first));
    }
  }
  keep_up(
      forwards,
      most_of_replica((windows.count + windows.rows - 1) / windows.rows));
  progress(windows.count);
  throw_if_unread(problem, mesh_);
  const auto total = torch::tensor(
      {mine.nats, static_cast<double>(mine.tokens)}, torch::kDouble);
  add_up(total, mesh_);
  const auto nats = total[0].item<double>();
  if (!std::isfinite(nats))
    fail_not_finite(windows, first_bad, mesh_);
  return {nats, static_cast<int64_t>(total[1].item<double>())};
}

torch::Tensor Scorer::next_log_probabilities(
    const std::vector<int64_t>& ids,
    DecoderModel::GenerationState& state) {
  const auto tokens = torch::tensor(ids).unsqueeze(0);
  const auto logits =
      through_stages(*model_, mesh_, tokens, [&](const torch::Tensor& input) {
        return model_->generate(tokens, input, state);
      });
  return logits.defined() ? torch::log_softmax(logits[0], -1) : logits;
}

ContinuationScore Scorer::score_choice(
    const std::vector<int64_t>& choice,
    const torch::Tensor& first,
    DecoderModel::GenerationState state) {
  ContinuationScore score{.log_likelihood = 0, .is_greedy = true};
  torch::Tensor next = first;
  for (size_t i = 0; i < choice.size(); ++i) {
    if (next.defined()) {
      score.log_likelihood += next[choice[i]].item<double>();
      score.is_greedy =
          score.is_greedy && next.argmax().item<int64_t>() == choice[i];
    }
    if (i + 1 < choice.size())
      next = next_log_probabilities({choice[i]}, state);
  }
  return score;
}

std::vector<std::vector<ContinuationScore>> Scorer::score(
    const std::vector<Continuations>& requests,
    int64_t most_tokens,
    const std::function<void(int64_t)>& progress) {
  const torch::NoGradGuard no_grad;
  std::vector<double> flat;  // two per choice
  std::vector<int64_t> forwards(static_cast<size_t>(mesh_.dp_cp()->size()));
  for (size_t r = 0; r < requests.size(); ++r) {
    const Continuations& request = requests[r];
    const auto number = static_cast<int64_t>(r);
    progress(number);
    const size_t begin = flat.size();
    flat.resize(begin + 2 * request.choices.size(), 0.0);
    forwards[r % forwards.size()] += forwards_for(request, most_tokens);
    if (!is_mine(number))
      continue;
    size_t seen = 0;  // tokens of the context behind `first`
    DecoderModel::GenerationState state;
    torch::Tensor first;
    for (size_t c = 0; c < request.choices.size(); ++c) {
      const std::vector<int64_t>& choice = request.choices[c];
      const size_t kept = seen_before(request, choice, most_tokens);
      if (kept != seen) {
        const auto end = request.context.end();
        state = {};
        first = next_log_probabilities(
            {end - static_cast<std::ptrdiff_t>(kept), end}, state);
        seen = kept;
      }
      const ContinuationScore score = score_choice(choice, first, state);
      if (!counts())
        continue;
      flat[begin + 2 * c] = score.log_likelihood;
      flat[begin + 2 * c + 1] = score.is_greedy ? 1 : 0;
    }
  }
  keep_up(
      forwards[static_cast<size_t>(mesh_.dp_cp()->rank())],
      *std::max_element(forwards.begin(), forwards.end()));
  progress(static_cast<int64_t>(requests.size()));
  const auto total = torch::tensor(flat, torch::kDouble);
  if (!flat.empty())
    add_up(total, mesh_);
  std::vector<std::vector<ContinuationScore>> scores;
  int64_t at = 0;
  for (const Continuations& request : requests) {
    std::vector<ContinuationScore>& of_request = scores.emplace_back();
    for (size_t c = 0; c < request.choices.size(); ++c, at += 2)
      of_request.push_back(
          {total[at].item<double>(), total[at + 1].item<double>() > 0});
  }
  return scores;
}

std::vector<double> Scorer::nats(
    const std::vector<ScoredWindow>& windows,
    const std::function<void(int64_t)>& progress) {
  std::vector<double> mine(windows.size(), 0.0);
  int64_t forwards = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const auto number = static_cast<int64_t>(w);
    progress(number);
    if (!is_mine(number) || windows[w].tokens.empty())
      continue;
    const auto tokens = torch::tensor(windows[w].tokens).unsqueeze(0);
    const int64_t inputs = tokens.size(1) - 1;
    const int64_t predicted = windows[w].predicted;
    auto targets = torch::full({1, inputs}, kNoTarget, torch::kLong);
    if (!windows[w].targets.empty())
      targets = torch::tensor(windows[w].targets).unsqueeze(0);
    else
      targets.narrow(1, inputs - predicted, predicted)
          .copy_(tokens.narrow(1, inputs + 1 - predicted, predicted));
    const double nats = loss_of(tokens.narrow(1, 0, inputs), targets);
    ++forwards;
    if (counts())
      mine[w] = nats;
  }
  const auto count = static_cast<int64_t>(windows.size());
  keep_up(forwards, most_of_replica(count));
  progress(count);
  if (mine.empty())
    return mine;
  const auto total = torch::tensor(mine, torch::kDouble);
  add_up(total, mesh_);
  return as_vector<double>(total);
}

DecoderModel::TopTokens Scorer::top_tokens_of(
    const Windows& windows,
    const TopTokensRequest& request) {
  if (windows.empty()) {
    keep_up(0, 1);
    return {};
  }
  const torch::Tensor hidden = hidden_of(padded_rows(windows));
  if (!model_->part().is_last)
    return {};
  const auto top = model_->top_tokens(hidden, request.k, request.vocabulary);
  return counts() ? top : DecoderModel::TopTokens();
}

void Scorer::hand_over(
    const DecoderModel::TopTokens& top,
    const Windows& windows,
    int64_t first,
    const TopTokensRequest& request) {
  const auto rows = static_cast<int64_t>(windows.size());
  const std::vector<int64_t> sizes = {rows, longest(windows), request.k};
  // Zeros from all ranks but one.
  const torch::Tensor ids = top.ids.defined()
                                ? top.ids.view(sizes)
                                : torch::zeros(sizes, torch::kLong);
  const torch::Tensor log_probs =
      top.log_probs.defined() ? top.log_probs.view(sizes) : torch::zeros(sizes);
  add_up(ids, mesh_);
  add_up(log_probs, mesh_);
  if (mesh_.rank() != 0)
    return;
  for (int64_t row = 0; row < rows; ++row) {
    const auto length =
        static_cast<int64_t>(windows[static_cast<size_t>(row)].size());
    request.take(
        first + row,
        {request.k,
         as_vector<int64_t>(ids[row].narrow(0, 0, length)),
         as_vector<float>(log_probs[row].narrow(0, 0, length))});
  }
}

void Scorer::top_tokens(
    const TopTokensRequest& request,
    const std::function<void(int64_t)>& progress) {
  const auto windows_from = [&](int64_t begin) {
    Windows windows;
    const int64_t end = std::min(request.windows, begin + request.rows);
    for (int64_t w = begin; w < end; ++w)
      windows.push_back(request.read(w));
    return windows;
  };
  const int64_t at_once = request.rows * mesh_.dp_cp()->size();
  for (int64_t first = 0; first < request.windows; first += at_once) {
    progress(first);
    // All ranks read all of a round before any computes, so that what cannot be
    // read ends them all in the same words.
    std::vector<Windows> round;
    const int64_t end = std::min(request.windows, first + at_once);
    for (int64_t begin = first; begin < end; begin += request.rows)
      round.push_back(windows_from(begin));
    const auto mine = static_cast<size_t>(mesh_.dp_cp()->rank());
    const auto top =
        top_tokens_of(mine < round.size() ? round[mine] : Windows(), request);
    for (size_t i = 0; i < round.size(); ++i)
      hand_over(
          i == mine ? top : DecoderModel::TopTokens(),
          round[i],
          first + static_cast<int64_t>(i) * request.rows,
          request);
  }
  progress(request.windows);
}

}  // namespace brigade
