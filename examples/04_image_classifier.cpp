// An image classifier whose batch normalisation spans all ranks, stepped by a
// sharded optimizer (ZeRO-1): each rank keeps the moments of its part only. Any
// number of ranks that divides the batch of 48 trains the same model.
//
//   brigade run -n 2 -- build/release/examples/example_04_image_classifier
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "brigade/brigade.h"

int main() {
  auto world = brigade::init_from_environment();
  torch::manual_seed(1);  // the same model and the same data on every rank
  const auto pictures = torch::randn({10, 1, 12, 12});
  torch::nn::Sequential layers(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)),
      torch::nn::BatchNorm2d(8),
      torch::nn::ReLU(),
      torch::nn::MaxPool2d(2),
      torch::nn::Flatten(),
      torch::nn::Linear(8 * 6 * 6, 10));

  brigade::DataParallel model(
      brigade::convert_sync_batch_norm(layers, world.data_parallel()),
      world.data_parallel(),
      {.handover = brigade::GradHandover::kMainGrad,
       .sharding = brigade::Sharding::kOptimizer});
  torch::optim::Adam optimizer(
      brigade::owned_parameters(model.sync()), torch::optim::AdamOptions(1e-2));
  torch::Tensor sums;  // of the loss, of right answers, of pictures
  for (int step = 0; step < 30; ++step) {
    const auto label = torch::randint(10, {48}, torch::kLong);
    const auto x =
        pictures.index_select(0, label) + torch::randn({48, 1, 12, 12});
    // This rank's part of the batch.
    const auto my_label = label.chunk(world.size())[world.rank()];
    const auto logits = model.forward(x.chunk(world.size())[world.rank()]);
    const auto loss = torch::cross_entropy_loss(logits, my_label);
    loss.backward();
    model.step(optimizer);  // steps its part of the weights, then gathers all
    const auto right = logits.argmax(1) == my_label;
    const auto count = static_cast<double>(right.numel());
    sums = torch::tensor(
        {loss.item<double>() * count, right.sum().item<double>(), count},
        torch::kDouble);
  }
  // Means of the last step over all ranks.
  world.data_parallel()->all_reduce(sums)->wait();
  const double accuracy = (sums[1] / sums[2]).item<double>();
  std::printf(
      "rank %d of %d: loss %.6f, accuracy %.2f\n",
      world.rank(),
      world.size(),
      (sums[0] / sums[2]).item<double>(),
      accuracy);
  return accuracy > 0.9 ? 0 : 1;
}
