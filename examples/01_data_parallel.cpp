// Data parallel for an ordinary libtorch program: a classifier of 28 x 28
// pictures that the example draws itself.
//
//   brigade run -n 2 -- build/release/examples/example_01_data_parallel
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "brigade/brigade.h"

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(28 * 28, 64))),
        output(register_module("output", torch::nn::Linear(64, 10))) {}
  torch::Tensor forward(const torch::Tensor& x) {  // [B, 784] -> [B, 10]
    return output->forward(torch::relu(hidden->forward(x)));
  }
  torch::nn::Linear hidden;
  torch::nn::Linear output;
};
TORCH_MODULE(Net);

int main() {
  auto world = brigade::init_from_environment();

  // The ten pictures that all ranks share; each rank sees its own noise.
  torch::manual_seed(1);
  const auto pictures = torch::randn({10, 28 * 28});
  torch::manual_seed(100 + static_cast<uint64_t>(world.rank()));

  brigade::DataParallel model(Net(), world.data_parallel());
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  double accuracy = 0;
  for (int step = 0; step < 60; ++step) {
    const auto label = torch::randint(10, {64}, torch::kLong);
    const auto x =
        pictures.index_select(0, label) + 2 * torch::randn({64, 784});
    const auto logits = model->forward(x);
    const auto loss = torch::cross_entropy_loss(logits, label);
    optimizer.zero_grad();
    loss.backward();  // buckets are reduced while it runs
    optimizer.step();
    accuracy =
        (logits.argmax(1) == label).to(torch::kFloat).mean().item<double>();
  }
  std::printf(
      "rank %d of %d: accuracy %.2f\n", world.rank(), world.size(), accuracy);
  return accuracy > 0.9 ? 0 : 1;
}
