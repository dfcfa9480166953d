// A transformer trained with ZeRO-1: each rank keeps the moments of its part of
// the weights, steps it and sends it to the others while the next forward runs.
// Beside it the same transformer in one process, to compare.
//
//   brigade run -n 2 -- build/release/examples/example_05_zero_transformer
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "brigade/brigade.h"

namespace {

constexpr int64_t kVocabulary = 16;
constexpr int64_t kTokens = 12;
constexpr int64_t kSequences = 12;  // of all ranks together

struct TransformerImpl : torch::nn::Module {
  TransformerImpl() {
    namespace nn = torch::nn;
    embedding = register_module("embedding", nn::Embedding(kVocabulary, 32));
    const auto layer = nn::TransformerEncoderLayer(
        nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(
            0));
    encoder = register_module("encoder", nn::TransformerEncoder(layer, 2));
    head = register_module("head", nn::Linear(32, kVocabulary));
  }
  torch::Tensor forward(const torch::Tensor& ids) {  // [T, B], to [T, B, V]
    const auto mask = torch::full({ids.size(0), ids.size(0)}, -INFINITY);
    return head(encoder(embedding(ids), torch::triu(mask, 1)));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

Transformer make_transformer() {
  torch::manual_seed(1);
  return {};
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& next) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
}

}  // namespace

int main() {
  auto world = brigade::init_from_environment();
  const int64_t each = kSequences / world.size();  // of this rank
  brigade::DataParallel model(
      make_transformer(),
      world.data_parallel(),
      {.handover = brigade::GradHandover::kMainGrad,
       .sharding = brigade::Sharding::kOptimizer,
       .gather = brigade::GatherMode::kOverlapForward});
  brigade::AdamW optimizer = brigade::make_adamw(model.sync(), 0.01);

  Transformer alone = make_transformer();
  torch::optim::AdamW plain(
      alone->parameters(), torch::optim::AdamWOptions(3e-3).weight_decay(0.01));

  double loss = 0;
  double difference = 0;
  torch::manual_seed(2);
  for (int step = 0; step < 60; ++step) {
    // Sequences that count up in steps of 1, 3 or 5 from anywhere.
    const auto first = torch::randint(kVocabulary, {1, kSequences});
    const auto stride = 1 + 2 * torch::randint(3, {1, kSequences});
    const auto sequence =
        ((first + stride * torch::arange(kTokens + 1).unsqueeze(1)) %
         kVocabulary)
            .to(torch::kLong);
    const auto ids = sequence.narrow(0, 0, kTokens);
    const auto next = sequence.narrow(0, 1, kTokens);
    const auto mine = [&](const torch::Tensor& all) {
      return all.narrow(1, world.rank() * each, each);
    };

    const auto part = loss_of(model.forward(mine(ids)), mine(next));
    part.backward();
    optimizer.step(
        3e-3, model.sync().grad_scale(), brigade::ops::AfterRead::kZero);
    model.gather_weights();  // returns at once; the next forward() waits

    plain.zero_grad();
    const auto whole = loss_of(alone->forward(ids), next);
    whole.backward();
    plain.step();

    auto mean = part.detach().to(torch::kDouble).view({1}) / world.size();
    world.data_parallel()->all_reduce(mean)->wait();
    loss = mean.item<double>();
    difference = std::max(difference, std::abs(loss - whole.item<double>()));
  }
  std::printf(
      "rank %d of %d: loss %.3f, at most %.1e from one process\n",
      world.rank(),
      world.size(),
      loss,
      difference);
  return loss < 0.8 && difference < 1e-3 ? 0 : 1;
}
