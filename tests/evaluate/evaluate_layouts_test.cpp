// Losses and log-likelihoods under every layout, against the log-softmax of one
// rank's whole forward. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "brigade/base/error.h"
#include "brigade/checkpoint/save.h"
#include "brigade/evaluate/scorer.h"
#include "brigade/generate/inference_config.h"
#include "brigade/model/init_weights.h"
#include "brigade/model_spec/parameter_table.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

constexpr int64_t kLength = 16;
// Its embedding in the model "infinite" is not finite.
constexpr int64_t kInfiniteToken = 255;
constexpr int64_t kWindows = 7;  // no multiple of the rows or the replicas

// The model has experts if the parameter is true.
class EvaluateLayouts : public ::testing::TestWithParam<bool> {
 protected:
  EvaluateLayouts() {
    auto json = testing::tiny_run("none")["model"]["config"];
    if (GetParam())
      json = testing::with_experts(json);
    json["initializer_range"] = 0.4;
    DecoderConfig decoder = parsed_config(json);
    model_ = std::make_shared<DecoderModel>(
        std::make_shared<ModelContext>(single_rank_context(decoder)),
        whole_model(decoder));
    const torch::NoGradGuard no_grad;
    auto weights = model_->named_parameters();
    for (const ParameterRow& row : list_parameters(decoder))
      weights[row.name].copy_(initial_weight(row, 3));
    save("saved", decoder, [](const std::string&, const torch::Tensor&) {});
    decoder.tie_word_embeddings = false;
    save(
        "infinite",
        decoder,
        [](const std::string& name, const torch::Tensor& weight) {
          if (name == "model.embed_tokens.weight")
            weight[kInfiniteToken].fill_(
                std::numeric_limits<float>::infinity());
        });
  }

  void save(
      const std::string& name,
      const DecoderConfig& decoder,
      const std::function<
          void(const std::string& name, const torch::Tensor& weight)>& change)
      const {
    CheckpointToSave checkpoint;
    for (const ParameterRow& row : list_parameters(decoder)) {
      const torch::Tensor weight = initial_weight(row, 3);
      change(row.name, weight);
      checkpoint.weights.push_back({.name = row.name, .tensor = weight});
    }
    checkpoint.manifest.dtype = "float32";
    checkpoint.manifest.model = to_hugging_face_json(decoder, "float32");
    checkpoint.manifest.tokenizer = "bytes";
    save_checkpoint(folder_ / name, std::move(checkpoint), SaveRanks{});
  }

  // The last window is short.
  static void read_window(int64_t window, std::span<int64_t> into) {
    for (size_t i = 0; i < into.size(); ++i)
      into[i] = window == kWindows - 1 && i > 5
                    ? -1
                    : (window * 31 + static_cast<int64_t>(i) * 7) % 256;
  }

  static void read_row(
      int64_t window,
      std::span<int64_t> inputs,
      std::span<int64_t> targets) {
    std::vector<int64_t> tokens(kLength + 1);
    read_window(window, tokens);
    const auto end = std::find(tokens.begin(), tokens.end(), -1);
    std::copy(tokens.begin(), end - 1, inputs.begin());
    std::copy(tokens.begin() + 1, end, targets.begin());
  }

  // float32 [T, V].
  torch::Tensor log_probabilities(const std::vector<int64_t>& ids) {
    const torch::NoGradGuard no_grad;
    return torch::log_softmax(
        model_->logits(torch::tensor(ids).unsqueeze(0))[0], -1);
  }

  void under(
      const ParallelDims& dims,
      const std::function<void(Scorer&)>& work,
      const std::string& name = "saved") const {
    const StoredModel stored({folder_ / name});
    const TrainConfig config = inference_config(
        stored,
        {{"distributed.tp_size=" + std::to_string(dims.tp)},
         {"distributed.pp_size=" + std::to_string(dims.pp)},
         {"distributed.cp_size=" + std::to_string(dims.cp)},
         {"distributed.ep_size=" + std::to_string(dims.ep)}},
        dims.world_size());
    testing::run_ranks_with_store(
        dims.world_size(), [&](int rank, const StorePtr& store) {
          const ProcessMesh mesh(dims, rank, store);
          Scorer scorer(stored, config, mesh);
          work(scorer);
        });
  }

  static std::vector<ParallelDims> layouts() {
    std::vector<ParallelDims> all = {
        {},
        {.dp = 2},
        {.tp = 2},
        {.pp = 2},
        {.cp = 2},
        {.dp = 2, .tp = 2, .pp = 2},
        {.dp = 3}};
    // In the last layout some replicas have less to do, or nothing.
    if (GetParam())
      all.insert(
          all.end(),
          {{.dp = 2, .ep = 2},
           {.dp = 2, .tp = 2, .pp = 2, .ep = 2},
           {.dp = 3, .cp = 2, .ep = 2}});
    return all;
  }

  testing::RunsFolder folder_;
  std::shared_ptr<DecoderModel> model_;
};

TEST_P(EvaluateLayouts, LossIsThatOfTheLogits) {
  double expected = 0;
  int64_t tokens = 0;
  std::vector<int64_t> window(kLength + 1);
  for (int64_t w = 0; w < kWindows; ++w) {
    read_window(w, window);
    const std::vector<int64_t> whole(
        window.begin(), std::find(window.begin(), window.end(), -1));
    const auto probabilities = log_probabilities(whole);
    for (size_t i = 1; i < whole.size(); ++i, ++tokens)
      expected -=
          probabilities[static_cast<int64_t>(i) - 1][whole[i]].item<double>();
  }
  for (const ParallelDims& dims : layouts()) {
    under(dims, [&](Scorer& scorer) {
      const TokenLoss loss = scorer.loss(
          {.count = kWindows, .length = kLength, .rows = 2, .read = &read_row},
          [](int64_t /*done*/) {});
      EXPECT_EQ(loss.tokens, tokens) << dims.product();
      EXPECT_NEAR(loss.nats / expected, 1, 1e-5) << dims.product();
    });
  }
}

TEST_P(EvaluateLayouts, EveryRankNamesTheFirstWindowWithoutAFiniteLoss) {
  const auto read = [](int64_t window,
                       std::span<int64_t> inputs,
                       std::span<int64_t> targets) {
    read_row(window, inputs, targets);
    if (window == 3 || window == 5)
      inputs[2] = targets[1] = kInfiniteToken;
  };
  for (const ParallelDims& dims : layouts()) {
    under(
        dims,
        [&](Scorer& scorer) {
          EXPECT_THAT(
              [&] {
                scorer.loss(
                    {.count = kWindows,
                     .length = kLength,
                     .rows = 2,
                     .read = read,
                     .name = "file"},
                    [](int64_t /*done*/) {});
              },
              ::testing::ThrowsMessage<NumericError>(::testing::HasSubstr(
                  "'file': the loss of windows 2 to 3 of 16")))
              << dims.product();
        },
        "infinite");
  }
}

// Every third token of a window counts, and none of the second one.
TEST_P(EvaluateLayouts, LossIsThatOfTheTokensThatCount) {
  const auto read = [](int64_t window,
                       std::span<int64_t> inputs,
                       std::span<int64_t> targets) {
    read_row(window, inputs, targets);
    for (size_t i = 0; i < targets.size(); ++i) {
      if (i % 3 != 0 || window == 1)
        targets[i] = -100;
    }
  };
  double expected = 0;
  int64_t tokens = 0;
  std::vector<int64_t> window(kLength + 1);
  for (int64_t w = 0; w < kWindows; ++w) {
    if (w == 1)
      continue;
    read_window(w, window);
    const std::vector<int64_t> whole(
        window.begin(), std::find(window.begin(), window.end(), -1));
    const auto probabilities = log_probabilities(whole);
    for (size_t i = 1; i < whole.size(); i += 3, ++tokens)
      expected -=
          probabilities[static_cast<int64_t>(i) - 1][whole[i]].item<double>();
  }
  for (const ParallelDims& dims : layouts()) {
    under(dims, [&](Scorer& scorer) {
      const TokenLoss loss = scorer.loss(
          {.count = kWindows, .length = kLength, .rows = 2, .read = read},
          [](int64_t /*done*/) {});
      EXPECT_EQ(loss.tokens, tokens) << dims.product();
      EXPECT_NEAR(loss.nats / expected, 1, 1e-5) << dims.product();
    });
  }
}

TEST_P(EvaluateLayouts, ChoicesHaveTheLogLikelihoodsOfTheLogits) {
  const std::vector<int64_t> context = {72, 101, 108, 108, 111};
  // The greedy continuation of two tokens.
  std::vector<int64_t> greedy;
  std::vector<int64_t> seen = context;
  for (int i = 0; i < 2; ++i) {
    greedy.push_back(log_probabilities(seen)
                         .select(0, static_cast<int64_t>(seen.size()) - 1)
                         .argmax()
                         .item<int64_t>());
    seen.push_back(greedy.back());
  }
  const std::vector<Continuations> requests = {
      {context, {{1, 2, 3}, greedy, {9}}}, {{5}, {{200}}}};
  const auto expected_of = [&](const Continuations& request, size_t choice) {
    std::vector<int64_t> whole = request.context;
    for (const int64_t id : request.choices[choice])
      whole.push_back(id);
    const auto probabilities = log_probabilities(whole);
    double sum = 0;
    for (size_t i = request.context.size(); i < whole.size(); ++i)
      sum +=
          probabilities[static_cast<int64_t>(i) - 1][whole[i]].item<double>();
    return sum;
  };
  // Computed before the ranks start, which are threads.
  std::vector<std::vector<double>> expected;
  for (const Continuations& request : requests) {
    expected.emplace_back();
    for (size_t c = 0; c < request.choices.size(); ++c)
      expected.back().push_back(expected_of(request, c));
  }
  for (const ParallelDims& dims : layouts()) {
    under(dims, [&](Scorer& scorer) {
      const auto scores = scorer.score(requests, 128, [](int64_t /*done*/) {});
      ASSERT_EQ(scores.size(), 2U);
      for (size_t r = 0; r < requests.size(); ++r) {
        for (size_t c = 0; c < requests[r].choices.size(); ++c)
          EXPECT_NEAR(scores[r][c].log_likelihood, expected[r][c], 1e-4)
              << dims.product();
      }
      EXPECT_TRUE(scores[0][1].is_greedy);
      EXPECT_FALSE(scores[0][0].is_greedy);
    });
  }
}

TEST_P(EvaluateLayouts, EachChoiceIsCutByItself) {
  std::vector<int64_t> context;
  for (int64_t i = 0; i < 20; ++i)
    context.push_back(i * 7 % 256);
  const std::vector<Continuations> requests = {
      {context, {{9}, {1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10}}}};
  constexpr int64_t kMost = 6;
  // The harness takes (context + choice)[-(most + 1):] and shows the model all
  // of it but the last token.
  std::vector<double> expected;
  for (const std::vector<int64_t>& choice : requests[0].choices) {
    std::vector<int64_t> whole = context;
    whole.insert(whole.end(), choice.begin(), choice.end());
    whole.erase(whole.begin(), whole.end() - (kMost + 1));
    const auto probabilities = log_probabilities(whole);
    double sum = 0;
    for (size_t i = whole.size() - choice.size(); i < whole.size(); ++i)
      sum +=
          probabilities[static_cast<int64_t>(i) - 1][whole[i]].item<double>();
    expected.push_back(sum);
  }
  for (const ParallelDims& dims : layouts()) {
    under(dims, [&](Scorer& scorer) {
      const auto scores =
          scorer.score(requests, kMost, [](int64_t /*done*/) {});
      for (size_t c = 0; c < expected.size(); ++c)
        EXPECT_NEAR(scores[0][c].log_likelihood, expected[c], 1e-4)
            << c << " in " << dims.product();
    });
  }
}

TEST_P(EvaluateLayouts, ScoresTheLastTokensOfEachWindow) {
  const std::vector<ScoredWindow> windows = {
      {.tokens = {1, 2, 3, 4}, .predicted = 3},
      {.tokens = {9, 8, 7, 6, 5}, .predicted = 1},
      {.tokens = {200, 100}, .predicted = 1}};
  std::vector<double> expected;
  for (const ScoredWindow& window : windows) {
    const std::vector<int64_t>& tokens = window.tokens;
    const auto probabilities = log_probabilities(tokens);
    double sum = 0;
    for (size_t i = tokens.size() - static_cast<size_t>(window.predicted);
         i < tokens.size();
         ++i)
      sum -=
          probabilities[static_cast<int64_t>(i) - 1][tokens[i]].item<double>();
    expected.push_back(sum);
  }
  for (const ParallelDims& dims : layouts()) {
    under(dims, [&](Scorer& scorer) {
      const auto nats = scorer.nats(windows, [](int64_t /*done*/) {});
      ASSERT_EQ(nats.size(), expected.size());
      for (size_t w = 0; w < expected.size(); ++w)
        EXPECT_NEAR(nats[w], expected[w], 1e-4) << dims.product();
      EXPECT_TRUE(scorer.nats({}, [](int64_t /*done*/) {}).empty());
    });
  }
}

// Of a tokenizer with fewer tokens than the model has rows: the others' share
// stays theirs.
TEST_P(EvaluateLayouts, TopTokensAreThoseOfTheLogits) {
  constexpr int64_t kTop = 3;
  constexpr int64_t kVocabulary = 120;
  const auto read = [](int64_t window) {
    std::vector<int64_t> tokens(kLength);
    read_window(window, tokens);
    tokens.erase(std::find(tokens.begin(), tokens.end(), -1), tokens.end());
    return tokens;
  };
  std::vector<std::vector<int64_t>> expected;
  std::vector<torch::Tensor> log_probs;
  for (int64_t w = 0; w < kWindows; ++w) {
    const auto [values, places] =
        log_probabilities(read(w)).narrow(1, 0, kVocabulary).topk(kTop, 1);
    const auto ids = places.flatten();
    expected.emplace_back(
        ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
    log_probs.push_back(values.flatten());
  }
  for (const ParallelDims& dims : layouts()) {
    std::vector<std::vector<int64_t>> found;
    under(dims, [&](Scorer& scorer) {
      scorer.top_tokens(
          {.windows = kWindows,
           .rows = 2,
           .k = kTop,
           .vocabulary = kVocabulary,
           .read = read,
           .take =
               [&](int64_t window, const TeacherTokens& of_targets) {
                 found.push_back(of_targets.ids);
                 EXPECT_TRUE(torch::allclose(
                     torch::tensor(of_targets.log_probs),
                     log_probs[static_cast<size_t>(window)],
                     1e-4,
                     1e-4));
               }},
          [](int64_t /*done*/) {});
    });
    EXPECT_EQ(found, expected) << dims.product();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    EvaluateLayouts,
    ::testing::Bool(),
    [](const auto& test) { return test.param ? "Experts" : "Dense"; });

}  // namespace
}  // namespace brigade
