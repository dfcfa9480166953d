// An image classifier whose batch normalisation spans all ranks, stepped by a
// sharded optimizer (ZeRO-1): each rank keeps the moments of its part only.
//
//   brigade run -n 2 -- build/release/examples/example_04_image_classifier
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "brigade/brigade.h"

int main() {
  auto world = brigade::init_from_environment();

  // Ten pictures that all ranks share; each rank sees its own noise.
  torch::manual_seed(1);
  const auto pictures = torch::randn({10, 1, 12, 12});
  torch::nn::Sequential layers(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)),
      torch::nn::BatchNorm2d(8),
      torch::nn::ReLU(),
      torch::nn::MaxPool2d(2),
      torch::nn::Flatten(),
      torch::nn::Linear(8 * 6 * 6, 10));
  torch::manual_seed(100 + static_cast<uint64_t>(world.rank()));

  brigade::DataParallel model(
      brigade::convert_sync_batch_norm(layers, world.data_parallel()),
      world.data_parallel(),
      {.handover = brigade::GradHandover::kMainGrad,
       .sharding = brigade::Sharding::kOptimizer});
  torch::optim::Adam optimizer(
      brigade::owned_parameters(model.sync()), torch::optim::AdamOptions(1e-2));
  double accuracy = 0;
  for (int step = 0; step < 60; ++step) {
    const auto label = torch::randint(10, {16}, torch::kLong);
    const auto x =
        pictures.index_select(0, label) + torch::randn({16, 1, 12, 12});
    const auto logits = model.forward(x);
    torch::cross_entropy_loss(logits, label).backward();
    model.step(optimizer);  // its part of the weights; then all get all
    accuracy =
        (logits.argmax(1) == label).to(torch::kFloat).mean().item<double>();
  }
  std::printf(
      "rank %d of %d: accuracy %.2f\n", world.rank(), world.size(), accuracy);
  return accuracy > 0.7 ? 0 : 1;
}
