#include "brigade/generate/token_generator.h"

#include <utility>

namespace brigade {
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
  random_.clear();
  for (const uint64_t seed : seeds)
    random_.emplace_back(seed);
}

void TokenGenerator::resume(int64_t tokens, uint64_t seed) {
  random_.assign(1, std::mt19937_64(seed));
  state_.length = tokens;
  for (auto& cache : state_.caches) {
    cache.keys = cache.keys.narrow(1, 0, tokens);
    cache.values = cache.values.narrow(1, 0, tokens);
  }
}

torch::Tensor TokenGenerator::logits_after(const torch::Tensor& ids) {
  Communicator& stages = *mesh_.axis(Axis::kPp);
  const ModelContext& context = model_->context();
  torch::Tensor input;
  if (!model_->part().is_first) {
    input = torch::empty(
        {ids.numel(), context.description.hidden_size}, context.dtype);
    stages.recv(input, stages.rank() - 1)->wait();
  }
  const torch::Tensor output = model_->generate(ids, input, state_);
  if (model_->part().is_last)
    return output;
  stages.send(output.contiguous(), stages.rank() + 1)->wait();
  return {};
}

std::vector<int64_t> TokenGenerator::next(
    const torch::Tensor& tokens,
    const std::vector<bool>& is_drawn) {
  std::vector<int64_t> drawn(is_drawn.size(), 0);
  if (!is_listener_) {
    const auto logits = logits_after(tokens);
    for (size_t i = 0; mesh_.rank() == drawing_rank_ && i < drawn.size(); ++i) {
      if (!is_drawn[i])
        continue;
      std::uniform_real_distribution<double> uniform(0, 1);
      drawn[i] = draw_token(
          next_token_probabilities(logits[static_cast<int64_t>(i)], sampling_),
          uniform(random_[i]));
    }
  }
  torch::Tensor shared = torch::tensor(drawn, torch::kLong);
  mesh_.world()->broadcast(shared, drawing_rank_)->wait();
  for (size_t i = 0; i < drawn.size(); ++i)
    drawn[i] = shared[static_cast<int64_t>(i)].item<int64_t>();
  return drawn;
}

}  // namespace brigade
