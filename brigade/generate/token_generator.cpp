#include "brigade/generate/token_generator.h"

#include <utility>

namespace brigade {
TokenGenerator::TokenGenerator(
    const StoredModel& stored,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const SamplingOptions& sampling,
    int64_t seed)
    : mesh_(mesh),
      drawing_rank_(mesh.dims().rank(
          {.dp = 0, .tp = 0, .pp = mesh.dims().pp - 1, .cp = 0})),
      is_listener_(mesh.coordinate().dp > 0 || mesh.coordinate().cp > 0),
      sampling_(sampling),
      random_(static_cast<uint64_t>(seed)) {
  if (!is_listener_)
    model_ = stored.load(config, mesh);
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
    return output[0];
  stages.send(output.contiguous(), stages.rank() + 1)->wait();
  return {};
}

int64_t TokenGenerator::next(const std::vector<int64_t>& tokens) {
  torch::Tensor token = torch::zeros({1}, torch::kLong);
  if (!is_listener_) {
    const auto logits = logits_after(torch::tensor(tokens).unsqueeze(0));
    if (mesh_.rank() == drawing_rank_) {
      std::uniform_real_distribution<double> uniform(0, 1);
      token.fill_(draw_token(
          next_token_probabilities(logits, sampling_), uniform(random_)));
    }
  }
  mesh_.world()->broadcast(token, drawing_rank_)->wait();
  return token.item<int64_t>();
}

}  // namespace brigade
