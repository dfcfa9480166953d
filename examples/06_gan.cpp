// A GAN, two wrapped modules that train in turn: a generator learns to draw
// numbers around 3, a discriminator to tell them from real ones.
//
//   brigade run -n 2 -- build/release/examples/example_06_gan
#include <torch/nn.h>
#include <torch/optim.h>

#include <cmath>
#include <cstdio>

#include "brigade/brigade.h"

torch::nn::Sequential make_net(int64_t inputs) {
  torch::nn::Sequential net(
      torch::nn::Linear(inputs, 32),
      torch::nn::Tanh(),
      torch::nn::Linear(32, 1));
  net->to(torch::kDouble);
  return net;
}

// The loss of logits that should say `is_real`.
torch::Tensor loss_of(const torch::Tensor& logits, double is_real) {
  return torch::binary_cross_entropy_with_logits(
      logits, torch::full_like(logits, is_real));
}

int main() {
  auto world = brigade::init_from_environment();
  torch::manual_seed(1);  // the same models and the same data on every rank
  brigade::DataParallel generator(make_net(4), world.data_parallel());
  brigade::DataParallel discriminator(make_net(1), world.data_parallel());
  const auto options = torch::optim::AdamOptions(1e-2).betas({0.5, 0.9});
  torch::optim::Adam generator_optimizer(generator->parameters(), options);
  torch::optim::Adam discriminator_optimizer(
      discriminator->parameters(), options);

  // A batch is the same for any number of ranks that divides 60.
  const auto part_of_this_rank = [&](const torch::Tensor& batch) {
    return batch.chunk(world.size())[world.rank()];
  };
  torch::Tensor sums;
  for (int step = 0; step < 200; ++step) {
    const auto real =
        part_of_this_rank(3 + 0.5 * torch::randn({60, 1}, torch::kDouble));
    const auto noise = part_of_this_rank(torch::randn({60, 4}, torch::kDouble));

    // Both losses in one backward: one step of the discriminator's gradients.
    const auto fake = generator->forward(noise);
    (loss_of(discriminator->forward(real), 1) +
     loss_of(discriminator->forward(fake.detach()), 0))
        .backward();
    discriminator_optimizer.step();

    // This backward goes through the discriminator, which does not learn from
    // it: nothing is sent, and its gradients are dropped.
    const auto guard = discriminator.no_sync();
    const auto loss = loss_of(discriminator->forward(fake), 1);
    loss.backward();
    generator_optimizer.step();
    discriminator->zero_grad();
    sums = torch::stack(
        {loss.detach(), fake.detach().mean(), torch::ones({}, torch::kDouble)});
  }
  world.data_parallel()->all_reduce(sums)->wait();
  const double mean = (sums[1] / sums[2]).item<double>();
  std::printf(
      "rank %d of %d: loss %.6f, draws around %.2f\n",
      world.rank(),
      world.size(),
      (sums[0] / sums[2]).item<double>(),
      mean);
  return std::abs(mean - 3) < 1 ? 0 : 1;
}
