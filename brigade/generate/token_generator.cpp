#include "brigade/generate/token_generator.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// Broadcast in place of a token, so that no rank waits for one.
constexpr int64_t kNotFinite = -1;

}  // namespace

TokenGenerator::TokenGenerator(
    const StoredModel& stored,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const SamplingOptions& sampling)
    : mesh_(mesh),
      drawing_rank_(mesh.dims().rank({.pp = mesh.dims().pp - 1})),
      is_listener_(mesh.dims().replica(mesh.coordinate()) >= mesh.dims().ep),
      sampling_(sampling) {
  if (!is_listener_)
    model_ = stored.load(config, mesh);
}

void TokenGenerator::begin(const std::vector<uint64_t>& seeds) {
  state_ = {};
  seen_tokens_ = 0;
  random_.clear();
  for (const uint64_t seed : seeds)
    random_.emplace_back(seed);
}

void TokenGenerator::resume(int64_t tokens, uint64_t seed) {
  random_.assign(1, std::mt19937_64(seed));
  state_.length = tokens;
  seen_tokens_ = tokens;
  for (auto& cache : state_.caches) {
    cache.keys = cache.keys.narrow(1, 0, tokens);
    cache.values = cache.values.narrow(1, 0, tokens);
  }
}

int64_t TokenGenerator::draw(const torch::Tensor& logits, size_t row) {
  if (!logits.isfinite().all().item<bool>())
    return kNotFinite;
  std::uniform_real_distribution<double> uniform(0, 1);
  return draw_token(
      next_token_probabilities(logits, sampling_), uniform(random_[row]));
}

std::vector<int64_t> TokenGenerator::next(
    const torch::Tensor& tokens,
    const std::vector<bool>& is_drawn) {
  std::vector<int64_t> drawn(is_drawn.size(), 0);
  if (!is_listener_) {
    const auto logits =
        through_stages(*model_, mesh_, tokens, [&](const torch::Tensor& input) {
          return model_->generate(tokens, input, state_);
        });
    for (size_t i = 0; mesh_.rank() == drawing_rank_ && i < drawn.size(); ++i) {
      if (is_drawn[i])
        drawn[i] = draw(logits[static_cast<int64_t>(i)], i);
    }
  }
  torch::Tensor shared = torch::tensor(drawn, torch::kLong);
  mesh_.world()->broadcast(shared, drawing_rank_)->wait();
  for (size_t i = 0; i < drawn.size(); ++i)
    drawn[i] = shared[static_cast<int64_t>(i)].item<int64_t>();
  seen_tokens_ += tokens.size(1);
  if (std::find(drawn.begin(), drawn.end(), kNotFinite) != drawn.end())
    throw NumericError(fmt::format(
        "[generate] the logits behind token {} of a text are not finite, so "
        "that no token can be drawn: a weight of the model is not, or what it "
        "computes overflows; take an earlier checkpoint, or for a model in "
        "bfloat16 --dtype float32",
        seen_tokens_));
  return drawn;
}

}  // namespace brigade
